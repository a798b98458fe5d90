"""Measure what each block of a real training step costs, so that placements can be judged without running them.

Four kinds of steps run, all of them real: one that notes what each block saves, one tracked with every block kept, one tracked
with every block recomputed, and some that are only timed. Hooks mark where each block begins and ends; between the marks the
tracker's record tells what was alive, and what of it belongs to which block.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from labkit.memory.chain import BlockCost, Chain
from labkit.memory.tracker import Tracker
from labkit.techniques.checkpointing import apply_checkpointing

Step = Callable[[], Any]


def profile_chain(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    step: Step,
    *,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    inputs: Any = None,
    repeats: int = 3,
) -> Chain:
    """The costs of `blocks`, modules of `model` that `step()` runs once and as a chain, without checkpointing in force.

    `step`, `optimizer` and `inputs` are as in `measure`. Times are medians over `repeats` steps; the weights move with every
    step. Raises ValueError where a block does not run exactly once a step or is not given the output of the one before.
    """
    if not blocks:
        raise ValueError("a chain needs at least one block")
    flags = _what_is_saved(blocks, step)
    with Tracker(model, optimizer, inputs=inputs, find_inputs=True) as warm_up:
        step()

    def tracked() -> "_Record":
        with Tracker(model, optimizer, inputs=inputs, storages=warm_up.found) as tracker, _marked(blocks, tracker) as marks:
            step()
        return _Record(tracker, marks, _device(model))

    kept = tracked()
    with apply_checkpointing(model, blocks, "full"):
        recomputed = tracked()
    times = _forward_times(blocks, step, repeats, _device(model))
    return _chain(kept, recomputed, flags, times)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


# ---- marks ------------------------------------------------------------------------------------------------------------


@dataclass
class _Marks:
    """Positions in the tracker's log, and the storages at the boundaries; one list entry a block, in the order they ran."""

    order: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    #: Where the backward pass of a block begins: its output's gradient is complete.
    backward: dict[int, int] = field(default_factory=dict)
    inputs: list[int | None] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)


@contextmanager
def _hooked(blocks: Sequence[nn.Module], before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
    """Call `before(index, arguments)` and `after(index, output)` around every block's forward."""
    handles = []
    for index, block in enumerate(blocks):
        handles.append(block.register_forward_pre_hook(lambda _, args, index=index: before(index, args)))
        handles.append(block.register_forward_hook(lambda _, args, output, index=index: after(index, output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _marked(blocks: Sequence[nn.Module], tracker: Tracker) -> Iterator[_Marks]:
    marks = _Marks()

    def reached(index: int, gradient: Tensor) -> None:
        marks.backward[index] = len(tracker._log)

    def before(index: int, args: tuple[Any, ...]) -> None:
        marks.order.append(index)
        marks.inputs.append(_number(tracker, args[0]))
        if index == 0 and args[0].requires_grad:
            args[0].register_hook(partial(reached, -1))
        marks.starts.append(len(tracker._log))

    def after(index: int, output: Any) -> None:
        marks.ends.append(len(tracker._log))
        first = _first(output)
        marks.outputs.append(_number(tracker, first))
        first.register_hook(partial(reached, index))

    with _hooked(blocks, before, after):
        yield marks
    if marks.order != list(range(len(blocks))):
        raise ValueError(f"a chain runs each block once, in order, in a step; the {len(blocks)} blocks ran as {marks.order}")
    for index in range(1, len(blocks)):
        if marks.inputs[index] != marks.outputs[index - 1]:
            raise ValueError(f"block {index} is not given the output of block {index - 1}, so the blocks are no chain")


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple | list) else output


def _number(tracker: Tracker, tensor: Tensor) -> int | None:
    known = tracker._live.get(tensor.untyped_storage()._cdata)
    return None if known is None else known.id


def _what_is_saved(blocks: Sequence[nn.Module], step: Step) -> list[tuple[bool, bool]]:
    """For each block, whether autograd saves its input, and its output, from within it."""
    saved: list[set[int]] = [set() for _ in blocks]
    arrived: dict[int, int] = {}
    flags = [(False, False)] * len(blocks)
    watching: list[saved_tensors_hooks] = []

    def before(index: int, args: tuple[Any, ...]) -> None:
        def note(tensor: Tensor) -> Tensor:
            saved[index].add(tensor.untyped_storage()._cdata)
            return tensor.detach()  # an output that holds itself would never be freed

        arrived[index] = args[0].untyped_storage()._cdata
        watching.append(saved_tensors_hooks(note, lambda tensor: tensor))
        watching[-1].__enter__()

    def after(index: int, output: Any) -> None:
        watching.pop().__exit__()
        flags[index] = arrived[index] in saved[index], _first(output).untyped_storage()._cdata in saved[index]

    with _hooked(blocks, before, after):
        step()
    return flags


def _forward_times(blocks: Sequence[nn.Module], step: Step, repeats: int, device: torch.device) -> list[float]:
    """Median time of each block's forward pass in ms."""
    times: list[list[float]] = [[] for _ in blocks]
    began = 0.0

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1e3 * time.perf_counter()

    def before(index: int, args: tuple[Any, ...]) -> None:
        nonlocal began
        began = now()

    def after(index: int, output: Any) -> None:
        times[index].append(now() - began)

    with _hooked(blocks, before, after):
        for _ in range(repeats):
            step()
    return [statistics.median(each) for each in times]


# ---- from a record to costs -------------------------------------------------------------------------------------------


class _Record:
    """One tracked step: live bytes at every position, and for each storage its size, birth and death."""

    def __init__(self, tracker: Tracker, marks: _Marks, device: torch.device) -> None:
        events = tracker.events
        self.marks = marks
        self.phases = [event.phase for event in events]
        on_device = [event.device == device for event in events]
        change = [
            (event.nbytes if event.kind == "alloc" else -event.nbytes) * on for event, on in zip(events, on_device, strict=True)
        ]
        #: live[p] after the first p events.
        self.live = np.concatenate([[0], np.cumsum(change)])
        self.birth: dict[int, int] = {}
        self.death: dict[int, int] = {}
        self.nbytes: dict[int, int] = {}
        for position, event in enumerate(events):
            if event.kind == "alloc":
                self.birth[event.storage] = position
                self.nbytes[event.storage] = event.nbytes * on_device[position]
            else:
                self.death[event.storage] = position
        #: The first event of the step itself: before it come the storages that were there.
        self.began = next((p for p, phase in enumerate(self.phases) if phase != "before"), len(events))

    def peak(self, start: int, end: int) -> int:
        """The most that is alive from position `start` to position `end`."""
        return int(self.live[start : end + 1].max())

    def alive(self, position: int, born: tuple[int, int]) -> set[int]:
        """The storages made between the two positions `born` that are there at `position`."""
        return {
            storage
            for storage, birth in self.birth.items()
            if born[0] <= birth < min(born[1], position) and self.death.get(storage, len(self.phases)) >= position
        }

    def size(self, storages: Iterable[int | None]) -> int:
        """Bytes of the storages that the step itself has made."""
        return sum(self.nbytes[each] for each in storages if each is not None and self.birth[each] >= self.began)

    def backward(self, index: int) -> tuple[int, int]:
        """The positions at which the backward pass of a block begins and ends."""
        start = self.marks.backward[index]
        end = self.marks.backward.get(index - 1)
        if end is None:  # the chain's input needs no gradient: the pass ends with the engine's work
            later = (p for p in range(start, len(self.phases)) if self.phases[p] not in ("backward", "recompute"))
            end = next(later, len(self.phases))
        return start, end


def _chain(kept: _Record, full: _Record, flags: Sequence[tuple[bool, bool]], times: Sequence[float]) -> Chain:
    marks, total = kept.marks, len(times)
    entry = kept.size([marks.inputs[0]])
    base = int(kept.live[marks.starts[0]]) - entry
    turn = kept.backward(total - 1)[0]  # everything that is kept is alive here
    blocks = []
    for index in range(total):
        start, end = marks.starts[index], marks.ends[index]
        mine = kept.alive(turn, (start, end))
        output = kept.size([marks.outputs[index]]) if kept.birth[marks.outputs[index]] >= start else 0
        saved = kept.size(mine - {marks.outputs[index]})
        begins, ends = kept.backward(index)
        stored = kept.size(kept.alive(begins, (start, end)) | kept.alive(begins, (marks.starts[0], start)))
        stored += entry * (begins <= kept.death.get(marks.inputs[0], len(kept.phases)))
        at_start = int(kept.live[begins])
        blocks.append(
            BlockCost(
                input=entry if index == 0 else blocks[-1].output,
                output=output,
                saved=saved,
                saves_input=flags[index][0],
                saves_output=flags[index][1],
                forward_work=max(0, kept.peak(start, end) - int(kept.live[start]) - saved - output),
                recompute_work=max(0, _recompute_peak(full, index) - saved),
                backward_work=kept.peak(begins, ends) - at_start,
                carried=at_start - base - stored,
                forward_ms=times[index],
            )
        )
    outside = max(kept.peak(kept.began, marks.starts[0]), kept.peak(kept.backward(0)[1], len(kept.phases)))
    chain = Chain(blocks=tuple(blocks), base=base, elsewhere=outside)
    stored = sum(block.saved + block.output * block.saves_output for block in blocks)
    stored += sum(block.input for index, block in enumerate(blocks) if block.saves_input and not _given(blocks, index))
    last = 0 if blocks[-1].saves_output else blocks[-1].output
    head = kept.peak(marks.ends[-1], turn) - base - stored - last
    return Chain(blocks=chain.blocks, base=base, head_work=max(0, head), elsewhere=outside)


def _given(blocks: Sequence[BlockCost], index: int) -> bool:
    return index > 0 and blocks[index - 1].saves_output


def _recompute_peak(full: _Record, index: int) -> int:
    """The most that a recomputation of one block holds above what is alive when the block's backward pass begins."""
    start, end = full.backward(index)
    inside = [p for p in range(start, end) if full.phases[p] == "recompute"]
    return max((int(full.live[p + 1]) for p in inside), default=int(full.live[start])) - int(full.live[start])
