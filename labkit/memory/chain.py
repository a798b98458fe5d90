"""The memory and time of a chain of blocks under any placement of checkpoints, from the costs of its blocks.

The executions described are those that `apply_checkpointing` can run: each block is kept, or belongs to one segment of
neighbours that is recomputed as a whole from its stored input. Segments are not nested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

#: Segments to recompute, each a run of neighbouring block indices; blocks in none are kept.
Placement = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCost:
    """What one block costs: bytes, and the milliseconds of its forward pass."""

    #: The block's input and output, its boundaries with its neighbours.
    input: int
    output: int
    #: Kept for backward when the block is not recomputed, apart from its input and output.
    saved: int
    #: Whether the block keeps its own input, and its own output, for backward.
    saves_input: bool = True
    saves_output: bool = False
    #: At the worst moment of the forward pass: beyond `saved + output`.
    forward_work: int = 0
    #: At the worst moment of a recomputation, which stops at the last saved tensor: beyond `saved`.
    recompute_work: int = 0
    #: At the worst moment of the backward pass: beyond what is alive when it starts.
    backward_work: int = 0
    #: Alive when its backward pass starts beside the chain's base and what blocks keep: gradients, of parameters and output.
    carried: int = 0
    forward_ms: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Blocks that run one after another, and what the rest of the step needs. Bytes."""

    blocks: tuple[BlockCost, ...]
    #: Alive when the first block starts, all through the step.
    base: int = 0
    #: At the worst moment between the blocks' forward and backward passes (head and loss): beyond base, what is kept, and the
    #: last block's output.
    head_work: int = 0
    #: The highest total outside all this, for example in the optimizer's step.
    elsewhere: int = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def kept(self) -> "list[Unit]":
        """Each block as a unit that is kept."""
        return [_kept(self, index) for index in range(len(self))]

    @cached_property
    def segments(self) -> "list[list[Unit]]":
        """For each block, the segments that begin there, shortest first."""
        return [_segments_from(self, start) for start in range(len(self))]

    def saves_boundary(self, index: int) -> bool:
        """Whether the input of block `index` is kept when that block and the one before it are."""
        return self.blocks[index].saves_input or (index > 0 and self.blocks[index - 1].saves_output)


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of a placement, blocks `start` to `stop - 1`: a kept block, or a segment to recompute.

    Memory is counted above base and above what the units before it store, its own input included.
    """

    start: int
    stop: int
    recomputed: bool
    #: Bytes it stores from its forward pass to its backward pass, its input apart.
    stores: int
    #: Whether it stores its input, and its output (which the next unit then need not store again).
    stores_input: bool
    stores_output: bool
    #: The highest totals: in the forward pass, where the input is alive anyway, and afterwards, where only stored bytes are.
    forward_need: int
    backward_need: int
    #: The time of its recomputation, in ms.
    extra_ms: float


def _kept(chain: Chain, index: int) -> Unit:
    """Block `index` kept."""
    block = chain.blocks[index]
    stores = block.saved + block.output * block.saves_output
    return Unit(
        start=index,
        stop=index + 1,
        recomputed=False,
        stores=stores,
        stores_input=block.saves_input,
        stores_output=block.saves_output,
        forward_need=block.saved + block.output + block.forward_work,
        backward_need=block.carried + stores + block.backward_work,
        extra_ms=0.0,
    )


def _segments_from(chain: Chain, start: int) -> list[Unit]:
    """The segments that begin at block `start`, shortest first.

    The first forward pass of a segment sets no peak: its recomputation holds all that the pass held and more.
    """
    found = []
    held = 0  # what the recomputation of the blocks before has made and kept, the boundary before this block included
    recompute = backward = 0
    extra_ms = 0.0
    for index in range(start, len(chain)):
        block = chain.blocks[index]
        entering = 0 if index == start else block.input
        boundary = entering if index > start and chain.saves_boundary(index) else 0
        stop_early = block.carried + max(recompute, held + entering + block.saved + block.recompute_work)
        kept = held + boundary + block.saved
        backward = max(backward, block.carried + kept + block.output * block.saves_output + block.backward_work)
        extra_ms += block.forward_ms
        found.append(
            Unit(
                start=start,
                stop=index + 1,
                recomputed=True,
                stores=0,
                stores_input=True,
                stores_output=False,
                forward_need=0,
                backward_need=max(stop_early, backward),
                extra_ms=extra_ms,
            )
        )
        recompute = max(recompute, held + entering + block.saved + block.output + block.forward_work)
        held = kept
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What a placement costs: the step's peak in bytes, and the milliseconds that recomputation adds."""

    peak: int
    extra_ms: float


def cost(chain: Chain, placement: Sequence[Sequence[int]]) -> Cost:
    """Peak and extra time of a placement on `chain`."""
    starts = {segment[0]: segment[-1] for segment in placement}
    peak, stored, has_input, extra_ms = chain.elsewhere, chain.base, False, 0.0
    index = 0
    while index < len(chain):
        unit = chain.segments[index][starts[index] - index] if index in starts else chain.kept[index]
        boundary = 0 if has_input else chain.blocks[index].input
        at_backward = boundary if unit.stores_input else 0
        peak = max(peak, stored + boundary + unit.forward_need, stored + at_backward + unit.backward_need)
        stored += at_backward + unit.stores
        extra_ms += unit.extra_ms
        has_input = unit.stores_output
        index = unit.stop
    last = 0 if has_input else chain.blocks[-1].output
    return Cost(max(peak, stored + last + chain.head_work), extra_ms)
