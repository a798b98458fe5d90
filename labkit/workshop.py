"""How much machine a workshop needs: many kernels started at the same moment, how soon each is ready and what it weighs."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import Any

import nbformat
import psutil

from labkit.exercises import notebooks

#: A kernel that is not ready after this many seconds never will be.
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Opening:
    """One kernel after its first cell."""

    #: From the start of the kernel to the end of the cell.
    seconds: float
    #: Memory that no other process shares, in bytes: what one learner more costs.
    own_bytes: int


def first_cell(number: str) -> str:
    """The source of the first code cell of notebook `number`; ValueError lists the notebooks that exist."""
    (path,) = notebooks.numbered([number])
    cells = nbformat.read(path, as_version=4).cells
    return next(str(cell.source) for cell in cells if cell.cell_type == "code")


def open_together(source: str, count: int) -> list[Opening]:
    """Start `count` kernels at once, run `source` in each, and weigh them while all of them live.

    Raises ValueError for a count below 1 and RuntimeError with the kernel's words when the cell fails.
    """
    if count < 1:
        raise ValueError(f"a workshop has at least 1 learner, not {count}")
    everyone = Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        openings = [pool.submit(_open, source, everyone) for _ in range(count)]
    # One that fails breaks the others' wait; its own words are the ones to hear.
    errors = [error for opening in openings if (error := opening.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [opening.result() for opening in openings]


def _open(source: str, everyone: Barrier) -> Opening:
    from jupyter_client.manager import start_new_kernel

    begin = time.perf_counter()
    try:
        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIMEOUT_S)
    except BaseException:
        everyone.abort()
        raise
    try:
        reply = client.execute_interactive(source, timeout=TIMEOUT_S, output_hook=lambda message: None)["content"]
        seconds = time.perf_counter() - begin
        if reply["status"] != "ok":
            everyone.abort()
            raise RuntimeError(f"the first cell failed: {reply['ename']}: {reply['evalue']}")
        everyone.wait()
        own = psutil.Process(_process(manager)).memory_full_info().uss
        everyone.wait()
        return Opening(seconds, own)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _process(manager: Any) -> int:
    return int(manager.provisioner.pid)
