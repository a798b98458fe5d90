"""Several processes that work on one step, as several devices would: torch.distributed on any machine, from a notebook too.

Each process is a *rank*. They talk through gloo, the library that torch uses between CPUs; on cards the same calls go
through NCCL. A rank has its own memory, so what it holds can be counted, but the cores are shared: this is for seeing what is
held and sent, not for speed.
"""

import inspect
import os
import tempfile
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: How long a rank waits for the others before it gives up.
PATIENCE = timedelta(seconds=120)


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Run `function(rank, ranks, *arguments)` in `ranks` processes joined by gloo; what each returned, in order.

    The function travels as its source, so that one written in a notebook cell works: it imports what it needs itself and
    uses no name from outside. Arguments and results are pickled; return numbers or numpy arrays rather than tensors. In a
    script, call it under `if __name__ == "__main__":`, since each process imports the script.

    Raises ValueError for fewer than one rank or a function without source, RuntimeError with the first failing rank's words.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"ranks must be a whole number of at least 1, not {ranks!r}")
    source = _source(function)
    # A file to meet at needs no free port and no host name.
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(ranks, mp_context=get_context("spawn")) as pool:
        meeting = str(Path(folder, "meeting"))
        threads = max(1, (os.cpu_count() or 1) // ranks)
        jobs = [
            pool.submit(_as_rank, source, function.__name__, rank, ranks, meeting, threads, arguments) for rank in range(ranks)
        ]
        outcomes = [job.result() for job in jobs]
    failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
    if failures:
        # The first to fail has the cause; the others only lost a partner.
        first = min(failures, key=lambda failure: failure.when)
        raise RuntimeError(f"rank {first.rank} failed: {first.words}")
    return outcomes


@dataclass(frozen=True, slots=True)
class _Failure:
    rank: int
    #: Seconds on the clock that all processes share, taken before the others could notice.
    when: float
    words: str


def _source(function: Callable[..., Any]) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        source = ""
    if not source.startswith("def "):
        raise ValueError(f"on_ranks sends a function as its source and needs one written with def, not {function!r}")
    return source


def _as_rank(source: str, name: str, rank: int, ranks: int, meeting: str, threads: int, arguments: tuple[Any, ...]) -> Any:
    """What runs in each process: join the group, run the function, leave the group, so that nobody waits for a failed rank."""
    torch.set_num_threads(threads)
    scope: dict[str, Any] = {"__name__": "rank"}
    try:
        exec(compile(source, f"<{name}>", "exec"), scope)
        store = dist.FileStore(meeting, ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
        return scope[name](rank, ranks, *arguments)
    except Exception as error:
        return _Failure(rank, time.time(), f"{type(error).__name__}: {error}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
