"""`labkit plan`: the largest batch that fits, for each precision and checkpointing, and what to change first."""

import argparse
import json
import re
import sys
from importlib import import_module
from typing import Any

HELP = "print the largest batch that fits a memory budget, for each precision and checkpointing, and what to change first"

#: How the course's model asks for attention, by the kernel that a CUDA card then takes in half precision.
ATTENTION = {"flash": "sdpa", "math": "mask"}


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
    parser.add_argument("--precision", nargs="+", metavar="NAME", help="settings (default: 32-true bf16-mixed bf16-true)")
    parser.add_argument("--checkpointing", nargs="+", metavar="POLICY", help="policies (default: none selective full)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a list of rows as JSON, sizes in bytes")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Plan and print; exit status 0. Raises ValueError for what cannot be planned."""
    from labkit.memory.planning import budget_bytes, plan
    from labkit.progress import progress
    from labkit.techniques.checkpointing import parse_policy
    from labkit.techniques.precision import as_precision

    budget, card = budget_bytes(arguments.memory, arguments.gpu)
    choices: dict[str, Any] = {}
    if arguments.precision:
        choices["precisions"] = [as_precision(name).name for name in arguments.precision]
    if arguments.checkpointing:
        for policy in arguments.checkpointing:
            parse_policy(policy)
        choices["checkpointings"] = arguments.checkpointing
    workload = _workload(arguments)
    table = plan(workload, budget, gpu=card, progress=lambda cases: progress(cases, label="plan"), **choices)
    if arguments.json:
        json.dump(table.to_dict("records"), sys.stdout, indent=1)
        print()
    elif arguments.csv:
        table.to_csv(sys.stdout, index=False)
    else:
        _print(table, workload.name, budget, card.name if card else None)
    return 0


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
