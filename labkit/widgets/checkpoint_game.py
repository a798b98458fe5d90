"""CheckpointGame: keep or recompute each block of a chain, meet a memory budget, then see the best there is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from labkit.memory.chain import BlockCost, Chain, Cost, cost
from labkit.memory.placement import least_peak
from labkit.memory.units import parse_bytes
from labkit.techniques.checkpointing import plan_segments
from labkit.widgets.base import LabWidget, checked, number_between, refused_as, script, style

KEEP, RECOMPUTE, JOIN = "keep", "recompute", "join"
#: More than a hand can place, and more than a row of buttons can show.
LARGEST = 16


def example_chain() -> Chain:
    """Eight blocks of three kinds (sizes of a small transformer between two wide layers) and a head that needs much at once."""
    kinds = {
        "wide": {"saved": 22_000_000, "backward_work": 6_000_000, "forward_ms": 2.0},
        "usual": {"saved": 10_000_000, "backward_work": 3_000_000, "forward_ms": 3.0},
        "dear": {"saved": 8_000_000, "backward_work": 3_000_000, "forward_ms": 7.0},
    }
    order = ["wide", "usual", "dear", "usual", "usual", "dear", "usual", "wide"]
    blocks = [
        BlockCost(input=2_000_000, output=2_000_000, carried=3_000_000 + 1_000_000 * (len(order) - index), **kinds[kind])
        for index, kind in enumerate(order)
    ]
    return Chain(blocks=tuple(blocks), base=16_000_000, head_work=14_000_000)


def _check_chain(chain: Any) -> dict[str, Any]:
    if isinstance(chain, Mapping):
        try:
            chain = Chain(**{**chain, "blocks": tuple(BlockCost(**block) for block in chain["blocks"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"a chain is described by the fields of labkit.memory.chain.Chain: {error}") from None
    if not isinstance(chain, Chain):
        raise TypeError(f"a chain is a labkit.memory.chain.Chain, not {type(chain).__name__}")
    if not 1 <= len(chain) <= LARGEST:
        raise ValueError(f"the game takes 1 to {LARGEST} blocks, not {len(chain)}")
    return {"blocks": [asdict(block) for block in chain.blocks]} | {
        field.name: getattr(chain, field.name) for field in fields(Chain) if field.name != "blocks"
    }


def _check_choice(choice: Any) -> list[str]:
    marks = list(choice)
    for index, mark in enumerate(marks):
        if mark not in (KEEP, RECOMPUTE, JOIN):
            raise ValueError(f"{mark!r} is not one of {KEEP}, {RECOMPUTE}, {JOIN}")
        if mark == JOIN and (index == 0 or marks[index - 1] == KEEP):
            raise ValueError(f"block {index} cannot join the block before it: that one is not recomputed")
    return marks


class CheckpointGame(LabWidget):
    """Click blocks to keep or recompute them; the timeline and the cost move at once.

    `chain`: a `labkit.memory.chain.Chain` of at most 16 blocks, for example a plan's (`plan_checkpointing(...).chain`); without
    one, an example. `budget`: bytes or text such as "60 MB"; by default a third of the way from the least peak to keeping all.

    Traits to read, set or observe: `choice` (a mark a block: keep, recompute, or join for recomputed together with the block
    before), `budget` (bytes). Bad input raises ValueError or TypeError and changes nothing.
    """

    _esm = script("dom.js", "checkpoint_chain.js", "checkpoint_game.js")
    _css = style("checkpoint_game.css")
    _shown = ("choice", "budget")

    chain = checked(_check_chain, default=_check_chain(example_chain()))
    budget = checked(number_between(1, 2**53, whole=True), default=1)
    choice = checked(_check_choice, default=[KEEP] * 8)

    def __init__(
        self, chain: Chain | None = None, *, budget: int | str | None = None, choice: Sequence[str] | None = None
    ) -> None:
        played = example_chain() if chain is None else chain
        described = _check_chain(played)
        marks = [KEEP] * len(played) if choice is None else _check_choice(choice)
        if len(marks) != len(played):
            raise ValueError(f"choice has {len(marks)} marks for {len(played)} blocks")
        low, high = least_peak(played), cost(played, ()).peak
        with refused_as("budget"):
            limit = low + (high - low) // 3 if budget is None else parse_bytes(budget)
        super().__init__(chain=described, budget=limit, choice=marks)

    @property
    def segments(self) -> list[list[int]]:
        """What is recomputed now, as `apply_checkpointing` takes it."""
        segments: list[list[int]] = []
        for index, mark in enumerate(self.choice):
            if mark == RECOMPUTE:
                segments.append([index])
            elif mark == JOIN:
                segments[-1].append(index)
        plan_segments(segments, len(self.choice))
        return segments

    @property
    def cost(self) -> Cost:
        """Peak and extra time of what is chosen now."""
        blocks = tuple(BlockCost(**block) for block in self.chain["blocks"])
        return cost(Chain(**{**self.chain, "blocks": blocks}), self.segments)
