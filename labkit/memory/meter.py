"""Measure the memory of a training step: any step of any model, on the device where the model is.

Two steps run. The first warms up: it makes optimizer state, and shows which tensors the step reads. The second is
recorded, by the tracker and by the allocator itself (torch's profiler on a CPU, `max_memory_allocated` on CUDA).
Both are real steps: the weights move.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile, record_function

from labkit.memory.report import AllocatorRecord, MemoryReport
from labkit.memory.tracker import Event, Tracker
from labkit.techniques.checkpointing import Policy
from labkit.techniques.precision import Precision, as_precision
from labkit.techniques.step import TrainingStep
from labkit.workload import Workload, to_device

_MARK = "labkit measured step"


def measure(
    step: Callable[[], Any],
    *,
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    inputs: Any = None,
    allocator: bool = True,
    name: str = "step",
) -> MemoryReport:
    """Run `step()` twice and report the memory of the second run on the model's device.

    `step` is one whole training step, forward to optimizer, that needs no argument. `inputs` is any nest of tensors that it
    reads; others that existed beforehand are found by themselves and count as inputs too. `allocator=False` skips the
    allocator's own record.

    Raises TypeError where `step` cannot be called, ValueError for a model without parameters.
    """
    if not callable(step):
        raise TypeError(f"step must be a function of no arguments that runs one training step, not {step!r}")
    device = _device(model)
    optimizers = optimizer if optimizer is None or isinstance(optimizer, Optimizer) else list(optimizer)

    def tracker(**options: Any) -> Tracker:
        return Tracker(model, optimizers, **options)

    if not allocator or device.type not in ("cpu", "cuda"):
        tracked = _second_step(step, tracker, inputs)
        return MemoryReport(_on(device, tracked), str(device), name=name)
    if device.type == "cuda":
        return _with_cuda_record(step, tracker, inputs, device, name)
    return _with_cpu_record(step, tracker, inputs, name)


def measure_workload(
    workload: Workload,
    batch_size: int,
    *,
    precision: str | Precision = "32-true",
    checkpointing: Policy = "none",
    device: torch.device | str | None = None,
    micro_batches: int = 1,
    seed: int = 0,
    allocator: bool = True,
) -> MemoryReport:
    """The memory of a steady step of `workload` at `batch_size` under a precision setting and a checkpointing policy.

    With `micro_batches` above 1, so many batches of `batch_size` go into one optimizer step. The caller's random numbers are
    left as they were. Raises ValueError for a size or count below 1 and for an unknown setting or policy.
    """
    for label, count in (("batch_size", batch_size), ("micro_batches", micro_batches)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{label} must be a whole number of at least 1, not {count!r}")
    with torch.random.fork_rng(enabled=True):
        step = TrainingStep(workload, precision=precision, checkpointing=checkpointing, device=device, seed=seed)
        # Placed beforehand, so that the copies count as inputs and not as something that forward made.
        batches = [step.precision.cast(to_device(workload.batch(batch_size), step.device)) for _ in range(micro_batches)]
        try:
            report = measure(
                lambda: step(*batches), model=step.model, optimizer=step.optimizer, inputs=batches, allocator=allocator
            )
        finally:
            step.checkpointing.remove()
    return replace(report, name=f"{workload.name} · batch {batch_size} · {as_precision(precision).name} · {checkpointing}")


def _device(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    raise ValueError(f"the model ({type(model).__name__}) has no parameters: there is nothing to train")


def _second_step(step: Callable[[], Any], tracker: Callable[..., Tracker], inputs: Any) -> list[Event]:
    found = _warm_up(step, tracker, inputs)
    with record_function(_MARK), tracker(inputs=inputs, storages=found) as tracked:
        step()
    return tracked.events


def _warm_up(step: Callable[[], Any], tracker: Callable[..., Tracker], inputs: Any) -> list[Any]:
    """Run one step, leave no garbage of it behind, and return weak references to the storages it read undeclared."""
    collects = gc.isenabled()
    gc.disable()  # what the step leaves in cycles then stays in the youngest generation, which is quick to collect
    try:
        with tracker(inputs=inputs, find_inputs=True) as warm_up:
            step()
        gc.collect(0)
    finally:
        if collects:
            gc.enable()
    return warm_up.found


def _with_cuda_record(
    step: Callable[[], Any], tracker: Callable[..., Tracker], inputs: Any, device: torch.device, name: str
) -> MemoryReport:
    found = _warm_up(step, tracker, inputs)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = torch.cuda.memory_allocated(device)
    with tracker(inputs=inputs, storages=found) as tracked:
        step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    events = _on(device, tracked.events)
    record = AllocatorRecord("torch.cuda.max_memory_allocated", peak, other_bytes=start - _before(events))
    return MemoryReport(events, str(device), record, name)


def _with_cpu_record(step: Callable[[], Any], tracker: Callable[..., Tracker], inputs: Any, name: str) -> MemoryReport:
    with _without_profiler_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        tracked = _second_step(step, tracker, inputs)
    events = _on(torch.device("cpu"), tracked)
    return MemoryReport(events, "cpu", _allocator_record(profiled, _before(events)), name)


def _on(device: torch.device, events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.device == device]


def _before(events: Iterable[Event]) -> int:
    return sum(event.nbytes for event in events if event.phase == "before")


def _allocator_record(profiled: profile, before: int) -> AllocatorRecord:
    """The highest running sum of the CPU allocator's events in the marked step, on top of what was there before it.

    The warm-up is profiled too, since the profiler leaves out the free of a block whose allocation it did not see: so the
    gradients of the warm-up, freed in the marked step, are counted right.
    """
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    recorded = profiled.profiler.kineto_results.events()
    start = next(event.start_ns() for event in recorded if event.name() == _MARK)
    memory = sorted(
        (event for event in recorded if event.name() == "[memory]" and event.start_ns() >= start),
        key=lambda event: event.start_ns(),
    )
    live = peak = before
    when = start
    for event in memory:
        live += event.nbytes()
        if live > peak:
            peak, when = live, event.start_ns()
    return AllocatorRecord("The profiler's record of the allocator", peak, _innermost_op(recorded, when))


def _innermost_op(recorded: Iterable[Any], when: int) -> str:
    around = [e for e in recorded if e.name().startswith("aten::") and e.start_ns() <= when <= e.start_ns() + e.duration_ns()]
    if not around:
        return ""
    return max(around, key=lambda event: event.start_ns()).name().replace("::", ".")


@contextmanager
def _without_profiler_chatter() -> Iterator[None]:
    """Hold back the lines that the profiler's C++ side prints to the process's stderr; all others come out at the end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            held.seek(0)
            for line in held:
                if not line.startswith(b"USDT:") and b"CPUAllocator.cpp" not in line:
                    os.write(stderr, line)
            os.close(stderr)
