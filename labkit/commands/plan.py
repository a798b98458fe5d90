"""`labkit plan`: the largest batch that fits, for each precision and checkpointing, and what to change first."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Any

HELP = "print the largest batch that fits a memory budget, for each precision and checkpointing, and what to change first"

#: How the course's model asks for attention, by the kernel that a CUDA card then takes in half precision.
ATTENTION = {"flash": "sdpa", "math": "mask"}
PRECISIONS = ["32-true", "bf16-mixed", "bf16-true"]
CHECKPOINTINGS = ["none", "selective", "full"]
#: From this many rows on a second process pays for its start; more than four do not pay for the memory they take.
ROWS_FOR_PROCESSES = 4
PROCESSES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan for, the budget, and how to print."""
    # So that "--memory -3GB" is refused in our words: argparse would take the size for an option.
    parser._negative_number_matcher = re.compile(r"-\d")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--preset", default="article", help="a preset of the course's model (default: article)")
    what.add_argument("--model", metavar="PACKAGE.MODULE:NAME", help="a Workload of your own, or a function that returns one")
    parser.add_argument("--memory", metavar="SIZE", help="what the allocator may take, such as 12GB or 11.5GiB")
    parser.add_argument("--gpu", metavar="NAME", help="a card of data/gpus.csv: its rules and, without --memory, its memory")
    parser.add_argument("--seq", type=int, metavar="N", help="sequence length of the preset, in tokens")
    parser.add_argument("--attention", choices=list(ATTENTION), help="flash: the causal flag; math: a float mask (preset only)")
    parser.add_argument("--precision", nargs="+", metavar="NAME", help=f"settings (default: {' '.join(PRECISIONS)})")
    parser.add_argument("--checkpointing", nargs="+", metavar="POLICY", help=f"policies (default: {' '.join(CHECKPOINTINGS)})")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a list of rows as JSON, sizes in bytes")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Plan and print; exit status 0. Raises ValueError for what cannot be planned."""
    from labkit.memory.planning import as_plan, budget_bytes
    from labkit.progress import progress
    from labkit.techniques.checkpointing import parse_policy
    from labkit.techniques.precision import as_precision

    budget, card = budget_bytes(arguments.memory, arguments.gpu)
    settings = [as_precision(name).name for name in arguments.precision or PRECISIONS]
    policies = arguments.checkpointing or CHECKPOINTINGS
    for policy in policies:
        parse_policy(policy)
    workload = _workload(arguments)
    cases = [(setting, policy) for setting in settings for policy in policies]
    table = as_plan(progress(_rows(arguments, cases, budget, card), total=len(cases), label="plan"))
    if arguments.json:
        json.dump(table.to_dict("records"), sys.stdout, indent=1)
        print()
    elif arguments.csv:
        table.to_csv(sys.stdout, index=False)
    else:
        _print(table, workload.name, budget, card.name if card else None)
    return 0


def _rows(arguments: argparse.Namespace, cases: list[tuple[str, str]], budget: int, card: Any) -> Iterator[Any]:
    """The rows in order, worked out in this process or, where there are many, in several: a workload does not travel between
    processes, but the arguments that make it do."""
    row = partial(_row, arguments, budget, card)
    processes = min(os.cpu_count() or 1, PROCESSES, len(cases))
    if processes == 1 or len(cases) < ROWS_FOR_PROCESSES:
        yield from map(row, cases)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(row, cases)


def _row(arguments: argparse.Namespace, budget: int, card: Any, case: tuple[str, str]) -> Any:
    from labkit.memory.planning import plan_row

    return plan_row(_workload(arguments), case, budget, gpu=card)


def _print(table: Any, name: str, budget: int, card: str | None) -> None:
    from labkit.memory.planning import advice
    from labkit.memory.published import margin
    from labkit.memory.units import UNITS, format_bytes

    where = f" on {card}" if card else ""
    print(
        f"{name}{where}: what fits in {format_bytes(budget)} ({format_bytes(budget, 'GB')}) for tensors, CUDA's context apart\n"
    )
    shown = table.assign(peak_bytes=table["peak_bytes"] / UNITS["GiB"]).rename(columns={"peak_bytes": "peak (GiB)"})
    print(shown.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print("\nWhat to change first")
    for line in advice(table):
        print(f"- {line}")
    print(f"\nPredicted, give or take {margin():.1%} (docs/validation.md).")


def _workload(arguments: argparse.Namespace) -> Any:
    if arguments.model:
        for option in ("seq", "attention"):
            if getattr(arguments, option) is not None:
                raise ValueError(f"--{option} is for a preset; a workload of your own makes its own batches")
        return _imported(arguments.model)
    from labkit.training import preset, workload

    changes: dict[str, Any] = {}
    if arguments.seq is not None:
        changes["sequence"] = arguments.seq
    if arguments.attention:
        changes["attention"] = ATTENTION[arguments.attention]
    from dataclasses import replace

    return replace(workload(preset(arguments.preset, **changes)), name=arguments.preset)


def _imported(path: str) -> Any:
    """The Workload that `package.module:name` names, or that the function of that name returns."""
    from labkit.workload import Workload

    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"--model {path!r} is not of the form package.module:name")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {path!r} does not import: {error}") from None
    finally:
        sys.path.remove("")
    found = found if isinstance(found, Workload) else found() if callable(found) else found
    if not isinstance(found, Workload):
        raise ValueError(
            f"--model {path!r} is a {type(found).__name__}, not a labkit.workload.Workload or a function that returns one"
        )
    return found
