"""Where to put checkpoints: the placement with the least recomputation that fits into a budget, exact on chains.

With M the budget, a placement is a path of units (kept blocks and recomputed segments) from block 0 to the chain's end.
Let S(i) be the set of pairs (stored bytes, extra time) that prefixes ending before block i can reach. Then

    S(0) = {(base, 0)},   S(j) = pareto { (m + stores(u), t + extra(u)) : u from i to j, (m, t) in S(i), m + needs(u) <= M }

and the answer is the least t in S(n) that leaves room for the head. A pair is dropped only when another one has no more bytes
and no more time; every constraint is monotone in the stored bytes, so nothing that is dropped could have done better. It is
the recurrence of Beaumont et al. (arXiv:1911.13214) over persistent schedules, kept to one recomputation per block and without
their rounding of memory to slots; the pruning is that of shortest paths under a resource constraint.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from labkit.memory.chain import Chain, Cost, Placement, Unit, cost
from labkit.memory.chain_profile import Step, profile_chain
from labkit.memory.meter import measure
from labkit.memory.report import MemoryReport
from labkit.memory.units import format_bytes, parse_bytes
from labkit.techniques.checkpointing import Checkpointing, apply_checkpointing, parse_policy, plan_segments


@dataclass(frozen=True, slots=True)
class Solution:
    """The best placement for a budget, and its cost."""

    placement: Placement
    cost: Cost


def best_placement(chain: Chain, budget: int | str) -> Solution:
    """The placement with the least extra time whose peak is at most `budget` (bytes, or text such as "12 MB").

    Raises ValueError, naming the least peak that any placement reaches, when nothing fits.
    """
    limit = parse_bytes(budget)
    search = Search(chain)
    placement = search.solve(limit)
    if placement is None:
        least = search.least_peak()
        raise ValueError(f"no placement fits in {format_bytes(limit)}: the least peak is {format_bytes(least)} ({least:,} B)")
    return Solution(placement, cost(chain, placement))


def least_peak(chain: Chain) -> int:
    """The lowest peak, in bytes, that any placement on `chain` reaches."""
    return Search(chain).least_peak()


def named_placement(policy: str, total: int) -> Placement:
    """The segments that a policy by name (`none`, `full`, `every:K`, `sqrt`) gives `total` blocks.

    Raises ValueError for `selective` and `offload`, which are not placements, and for what is no policy.
    """
    if parse_policy(policy)[0] in ("selective", "offload"):
        raise ValueError(f"checkpointing {policy!r} does not choose whole blocks; placements are none, full, every:K, sqrt")
    return tuple(map(tuple, plan_segments(policy, total)))


def all_placements(total: int, start: int = 0) -> Iterator[Placement]:
    """Every placement on `total` blocks: 5 on two, 13 on three, 75,025 on twelve."""
    if start == total:
        yield ()
        return
    yield from all_placements(total, start + 1)
    for stop in range(start + 1, total + 1):
        for rest in all_placements(total, stop):
            yield (tuple(range(start, stop)), *rest)


# ---- on a real model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointPlan:
    """The best placement on a model's blocks for a budget, with what it should cost."""

    budget: int
    solution: Solution
    chain: Chain
    _model: nn.Module = field(repr=False)
    _blocks: Sequence[nn.Module] = field(repr=False)
    _step: Step = field(repr=False)
    _optimizer: Any = field(repr=False, default=None)
    _inputs: Any = field(repr=False, default=None)

    @property
    def segments(self) -> list[list[int]]:
        """The placement as `apply_checkpointing` takes it."""
        return [list(segment) for segment in self.solution.placement]

    @property
    def expected_peak(self) -> int:
        """Peak of the step in bytes."""
        return self.solution.cost.peak

    @property
    def expected_extra_ms(self) -> float:
        """What recomputation should add to a step."""
        return self.solution.cost.extra_ms

    def apply(self) -> Checkpointing:
        """Put the placement in force on the model; `remove()` the handle, or use it as a context, to end it."""
        return apply_checkpointing(self._model, self._blocks, self.segments)

    def measure(self) -> MemoryReport:
        """The memory of a real step with the placement in force."""
        with self.apply():
            return measure(
                self._step,
                model=self._model,
                optimizer=self._optimizer,
                inputs=self._inputs,
                allocator=False,
                name=f"placement for {format_bytes(self.budget, binary=False)}",
            )

    def measure_extra_ms(self, repeats: int = 5) -> float:
        """What recomputation really adds to a step: the median over pairs of steps, without and with, run in turn."""
        differences = []
        for _ in range(repeats):
            plain = _milliseconds(self._step)
            with self.apply():
                differences.append(_milliseconds(self._step) - plain)
        return statistics.median(differences)

    def __repr__(self) -> str:
        chosen = ", ".join(_as_range(segment) for segment in self.segments) or "nothing"
        peak, budget = (format_bytes(size, binary=False) for size in (self.expected_peak, self.budget))
        return (
            f"CheckpointPlan(recompute {chosen} of {len(self.chain)} blocks: peak {peak} of {budget}, "
            f"{self.expected_extra_ms:.1f} ms more a step)"
        )


def _as_range(segment: Sequence[int]) -> str:
    return f"{segment[0]}–{segment[-1]}" if len(segment) > 1 else f"{segment[0]}"


def _milliseconds(step: Step) -> float:
    began = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def plan_checkpointing(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    budget: int | str,
    *,
    step: Step,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    inputs: Any = None,
    repeats: int = 3,
) -> CheckpointPlan:
    """Which of `blocks` to recompute so that the peak of `step()` stays within `budget` at the least extra time.

    Runs a few real steps to learn what each block costs (see `profile_chain` for the arguments), searches, and returns the
    plan; nothing stays in force. Raises ValueError where no placement fits, naming the least peak, or the blocks are no chain.
    """
    chain = profile_chain(model, blocks, step, optimizer=optimizer, inputs=inputs, repeats=repeats)
    limit = parse_bytes(budget)
    return CheckpointPlan(limit, best_placement(chain, limit), chain, model, blocks, step, optimizer, inputs)


# ---- the search -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Labels:
    """Pareto-best prefixes at one node: stored bytes (rising), extra time (falling), and where each came from."""

    stored: np.ndarray
    extra_ms: np.ndarray
    #: The unit that leads here and whether its input was stored before; `run` says which of them a label came by, `parent`
    #: which label of the unit's start it continues.
    arrivals: list[tuple[Unit, bool]]
    run: np.ndarray
    parent: np.ndarray


class Search:
    """The label search on one chain, for any number of budgets.

    A node is a block index and whether the block before stores that block's input.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.arriving: list[list[Unit]] = [[] for _ in range(len(chain) + 1)]
        for index in range(len(chain)):
            for unit in (chain.kept[index], *chain.segments[index]):
                self.arriving[unit.stop].append(unit)

    def solve(self, limit: int) -> Placement | None:
        """The placement with the least extra time that fits, and of several the one that stores least; None without one."""
        if self.chain.elsewhere > limit:
            return None
        nowhere = np.array([-1])
        nodes = {(0, False): _Labels(np.array([self.chain.base]), np.zeros(1), [], nowhere, nowhere)}
        for index in range(1, len(self.chain) + 1):
            for has_input in (False, True):
                labels = self._labels(nodes, index, has_input, limit)
                if labels is not None:
                    nodes[index, has_input] = labels
        return self._trace(nodes, limit)

    def _labels(self, nodes: dict[tuple[int, bool], _Labels], index: int, has_input: bool, limit: int) -> _Labels | None:
        """The labels at a node, from every label and unit that leads there and fits."""
        arrivals, stored, extra_ms = [], [], []
        ceiling = limit - self.chain.head_work  # whatever follows, the head finds all this stored
        for unit in self.arriving[index]:
            if unit.stores_output != has_input:
                continue
            for stored_before in (False, True):
                before = nodes.get((unit.start, stored_before))
                if before is None:
                    continue
                adds, needs = _on_top(self.chain, unit, stored_before)
                count = int(before.stored.searchsorted(min(limit - needs, ceiling - adds), side="right"))
                if count:
                    arrivals.append((unit, stored_before))
                    stored.append(before.stored[:count] + adds)
                    extra_ms.append(before.extra_ms[:count] + unit.extra_ms)
        return _pareto(arrivals, stored, extra_ms) if arrivals else None

    def _trace(self, nodes: dict[tuple[int, bool], _Labels], limit: int) -> Placement | None:
        """The path back from the best label at the end that leaves room for the head."""
        ends = []
        for has_input in (False, True):
            labels = nodes.get((len(self.chain), has_input))
            if labels is not None:
                room = limit - self.chain.head_work - (0 if has_input else self.chain.blocks[-1].output)
                count = int(labels.stored.searchsorted(room, side="right"))
                if count:  # time falls as bytes rise, so the last that fits is the fastest
                    ends.append((labels.extra_ms[count - 1], labels.stored[count - 1], has_input, count - 1))
        if not ends:
            return None
        _, _, has_input, place = min(ends)
        index, segments = len(self.chain), []
        while index:
            labels = nodes[index, has_input]
            (unit, has_input), place = labels.arrivals[labels.run[place]], labels.parent[place]
            index = unit.start
            if unit.recomputed:
                segments.append(tuple(range(unit.start, unit.stop)))
        return tuple(reversed(segments))

    def least_peak(self) -> int:
        """The lowest peak of any placement: by halving, as a budget that suffices stays sufficient when it grows."""
        low, high = self.chain.elsewhere, cost(self.chain, ()).peak
        while low < high:
            middle = (low + high) // 2
            if self._fits(middle):
                high = middle
            else:
                low = middle + 1
        return high

    def _fits(self, limit: int) -> bool:
        """Whether any placement fits: only the least stored bytes at each node matter."""
        least = {(0, False): self.chain.base}
        for unit in (unit for arriving in self.arriving for unit in arriving):
            for stored_before in (False, True):
                stored = least.get((unit.start, stored_before))
                if stored is None:
                    continue
                adds, needs = _on_top(self.chain, unit, stored_before)
                node = (unit.stop, unit.stores_output)
                if stored + needs <= limit and stored + adds < least.get(node, limit + 1):
                    least[node] = stored + adds
        end = len(self.chain)
        heads = [
            stored + self.chain.head_work + (0 if has_input else self.chain.blocks[-1].output)
            for (index, has_input), stored in least.items()
            if index == end
        ]
        return min(heads, default=limit + 1) <= limit


def _pareto(arrivals: list[tuple[Unit, bool]], stored: list[np.ndarray], extra_ms: list[np.ndarray]) -> _Labels:
    """All labels but those that another one beats or equals in both; each part is sorted by stored bytes already."""
    starts = np.cumsum([0, *map(len, stored)])
    everything, times = np.concatenate(stored), np.concatenate(extra_ms)
    order = everything.argsort(kind="stable")  # merges runs that are in order, as these are
    times = times[order]
    better = np.concatenate([[True], times[1:] < np.minimum.accumulate(times)[:-1]])
    chosen = order[better]
    run = starts.searchsorted(chosen, side="right") - 1
    return _Labels(everything[chosen], times[better], arrivals, run, chosen - starts[run])


def _on_top(chain: Chain, unit: Unit, has_input: bool) -> tuple[int, int]:
    """What a unit adds to the stored bytes, and the most it needs on top of them, its input included where it is not there."""
    boundary = 0 if has_input else chain.blocks[unit.start].input
    stored_input = boundary if unit.stores_input else 0
    return stored_input + unit.stores, max(boundary + unit.forward_need, stored_input + unit.backward_need)
