"""What a measured training step held, when: the peak by category, the timeline, and how far the allocator's own record is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.memory.tracker import CATEGORIES, Event
from labkit.memory.units import UNITS, best_unit, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: From the bottom of a stacked figure to its top: what stays through the step first, what comes and goes last.
STACK = ("parameters", "optimizer", "gradients", "inputs", "activations", "temporaries")
#: How each phase is marked along a timeline: grey level and hatch, apart in print too.
_PHASE_MARKS = {
    "forward": ("#F2F2F2", ""),
    "recompute": ("#FFFFFF", "////"),
    "backward": ("#C9C9C9", ""),
    "optimizer": ("#8C8C8C", ""),
}


@dataclass(frozen=True)
class AllocatorRecord:
    """What the allocator itself saw of the same step."""

    #: Where the figure is from.
    source: str
    peak_bytes: int
    #: The op that ran when the record peaked; empty where the source cannot tell.
    op: str = ""
    #: Bytes that were allocated before the step and are neither model, optimizer nor inputs.
    other_bytes: int = 0


@dataclass(frozen=True, repr=False)
class MemoryReport:
    """The memory of one steady training step on one device. All sizes in bytes."""

    #: The storages' comings and goings, in order; what was there before the step comes first.
    events: Sequence[Event]
    device: str
    allocator: AllocatorRecord | None = None
    name: str = "step"
    #: Highest sum of live storages within the step, and what it was made of.
    peak_bytes: int = field(init=False)
    by_category: dict[str, int] = field(init=False)
    #: Phase, op and module of the allocation that reached the peak.
    phase_at_peak: str = field(init=False)
    op_at_peak: str = field(init=False)
    module_at_peak: str = field(init=False)

    def __post_init__(self) -> None:
        top = self.timeline.iloc[int(self.timeline["live"].to_numpy().argmax())]
        found = {
            "peak_bytes": int(top["live"]),
            "by_category": {name: int(top[name]) for name in CATEGORIES},
            "phase_at_peak": str(top["phase"]),
            "op_at_peak": str(top["op"]),
            "module_at_peak": str(top["module"]),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row an event: event, phase, module, op, category, nbytes (signed), live bytes by category, and live in all.

        Row 0, event "start", is what was there before the step.
        """
        categories = np.array([CATEGORIES.index(event.category) for event in self.events], dtype=np.intp)
        signed = np.array([event.nbytes if event.kind == "alloc" else -event.nbytes for event in self.events], np.int64)
        changes = np.zeros((len(self.events), len(CATEGORIES)), np.int64)
        changes[np.arange(len(self.events)), categories] = signed
        before = sum(event.phase == "before" for event in self.events)
        during = self.events[before:]
        live = np.vstack([changes[:before].sum(0), changes[before:]]).cumsum(0)
        frame = pd.DataFrame(
            {
                "event": ["start", *(event.kind for event in during)],
                "phase": ["before", *(event.phase for event in during)],
                "module": ["", *(event.module for event in during)],
                "op": ["", *(event.op for event in during)],
                "category": ["", *(event.category for event in during)],
                "nbytes": np.concatenate([[live[0].sum()], signed[before:]]),
            }
        )
        return frame.join(pd.DataFrame(live, columns=list(CATEGORIES))).assign(live=live.sum(1))

    @property
    def gap_bytes(self) -> int | None:
        """The allocator's peak less this report's; None without an allocator's record."""
        return None if self.allocator is None else self.allocator.peak_bytes - self.peak_bytes

    @property
    def gap(self) -> str:
        """In words, how far the sum of tensors is from what the allocator recorded, and where the rest is."""
        if self.allocator is None or self.gap_bytes is None:
            return "There is no allocator's record to compare with."
        if self.gap_bytes == 0:
            return f"{self.allocator.source}: the same peak, to the byte."
        share = abs(self.gap_bytes) / self.peak_bytes
        direction = "higher" if self.gap_bytes > 0 else "lower"
        amount = "less than 0.01 %" if share < 1e-4 else f"{share:.2%}"
        return f"{self.allocator.source}: {abs(self.gap_bytes):,} B {direction} ({amount}){self._whose()}. " + (
            "Kernel workspace, saved random states and tensors around Python numbers are in no tensor that an op returns."
            if self.gap_bytes > 0
            else "Some of the step's tensors are not from torch's allocator."
        )

    def _whose(self) -> str:
        parts = []
        if self.allocator is not None and self.allocator.op:
            parts.append(f", peaking inside {self.allocator.op}")
        if self.allocator is not None and self.allocator.other_bytes > 0:
            parts.append(f", of which {self.allocator.other_bytes:,} B were there before, in other tensors and rounding")
        return "".join(parts)

    def peak_in_words(self, unit: str | None = None) -> str:
        """One sentence: the peak, its phase, the op and the module."""
        where = f" of {self.module_at_peak}" if self.module_at_peak else ""
        size = format_bytes(self.peak_bytes, unit or best_unit(self.peak_bytes, binary=False))
        if not self.op_at_peak:
            return f"Peak {size}, before the step's first op."
        return f"Peak {size} in {self.phase_at_peak}, at {self.op_at_peak}{where}."

    def table(self, unit: str | None = None) -> pd.DataFrame:
        """What the peak is made of: size in `unit` (by default the best decimal one) and share, by category and in all."""
        unit = unit or best_unit(self.peak_bytes, binary=False)
        sizes = pd.Series({**self.by_category, "peak": self.peak_bytes})
        frame = pd.DataFrame({f"at the peak ({unit})": sizes / UNITS[unit], "share (%)": 100 * sizes / self.peak_bytes})
        return frame.rename_axis("category")

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.by_category.items())
        return f"MemoryReport({self.name} on {self.device}: {self.peak_in_words()} Bytes: {parts}. {self.gap})"

    def _repr_html_(self) -> str:
        table = self.table().style.format("{:,.2f}", subset=[self.table().columns[0]]).format("{:.1f}", subset="share (%)")
        return (
            f"<p><b>{escape(self.name)}</b> on {escape(self.device)}. {escape(self.peak_in_words())}</p>"
            f"{table.to_html()}<p>{escape(self.gap)}</p>"
        )

    # ---- the figure ---------------------------------------------------------------------------------------------

    def plot(self, title: str | None = None, *, ax: "Axes | None" = None, unit: str | None = None) -> "Figure":
        """The step as a stacked area over its allocations and frees, with its phases and its peak marked."""
        from labkit import plots

        unit = unit or best_unit(self.peak_bytes, binary=False)
        if ax is None:
            _, ax = plots.figure(size=(9.0, 4.6))
        x = np.arange(len(self.timeline))
        floor = np.zeros(len(x))
        for name in STACK:
            color, hatch = plots.CATEGORIES[name]
            top = floor + self.timeline[name].to_numpy() / UNITS[unit]
            if (top > floor).any():
                ax.fill_between(
                    x, floor, top, step="post", facecolor=color, edgecolor="white", hatch=hatch, linewidth=0.0, label=name
                )
                ax.step(x, top, where="post", color="white", linewidth=0.5)
            floor = top
        ax.step(x, floor, where="post", color="black", linewidth=1.1)
        ax.set(xlabel="allocations and frees, in order", ylabel=f"live memory ({unit})", xlim=(0, x[-1]), title=title or "")
        ax.set_ylim(0, floor.max() * 1.22)
        unnamed = self._mark_phases(ax)
        self._mark_peak(ax, UNITS[unit])
        handles = [*unnamed, *ax.get_legend_handles_labels()[0][::-1]]
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), handleheight=1.2)
        return ax.figure  # type: ignore[return-value]

    def _mark_phases(self, ax: "Axes") -> list[Any]:
        """A strip along the top with the phases, named where there is room; legend entries for those named nowhere."""
        from matplotlib.patches import Patch

        unnamed = dict.fromkeys(self.timeline["phase"].iloc[1:])
        phases = self.timeline["phase"].to_numpy()
        starts = [1, *(i for i in range(2, len(phases)) if phases[i] != phases[i - 1]), len(phases)]
        strip = ax.get_xaxis_transform()
        for start, end in zip(starts, starts[1:], strict=False):
            color, hatch = _PHASE_MARKS.get(phases[start], ("#FFFFFF", ""))
            ax.fill_between(
                [start - 1, end - 1], 0.94, 1.0, transform=strip, facecolor=color, edgecolor="#555555", hatch=hatch, lw=0.4
            )
            if end - start > 0.11 * len(phases):
                middle = (start + end) / 2 - 1
                box = {"facecolor": color, "edgecolor": "none", "pad": 1.0} if hatch else None
                ax.text(middle, 0.967, phases[start], transform=strip, ha="center", va="center", size=8.5, bbox=box)
                unnamed.pop(phases[start], None)
        marks = {name: _PHASE_MARKS[name] for name in _PHASE_MARKS if name in unnamed}
        return [Patch(facecolor=c, edgecolor="#555555", hatch=h, lw=0.4, label=name) for name, (c, h) in marks.items()]

    def _mark_peak(self, ax: "Axes", unit_bytes: int) -> None:
        at = int(self.timeline["live"].to_numpy().argmax())
        right = at > 0.6 * len(self.timeline)
        where = f" · {self.module_at_peak}" if self.module_at_peak else ""
        ax.plot([at + 0.5], [self.peak_bytes / unit_bytes], marker="v", color="black", markersize=7, clip_on=False)
        ax.annotate(
            f"peak · {self.op_at_peak}{where}",
            (at + 0.5, self.peak_bytes / unit_bytes),
            xytext=(-10 if right else 10, 8),
            textcoords="offset points",
            ha="right" if right else "left",
            size=9,
        )

    @property
    def alt(self) -> str:
        """The figure in one or two sentences, for those who cannot see it."""
        parts = ", ".join(f"{name} {size / self.peak_bytes:.0%}" for name, size in self.by_category.items() if size)
        phases = list(dict.fromkeys(self.timeline["phase"].iloc[1:]))
        return f"Stacked area of live memory through {', '.join(phases)}. {self.peak_in_words()} At the peak: {parts}."

    def summary(self) -> dict[str, Any]:
        """Peak, categories and allocator's record as one flat dict of ints, for a row of a table."""
        record = None if self.allocator is None else self.allocator.peak_bytes
        return {"peak_bytes": self.peak_bytes, **self.by_category, "allocator_bytes": record}
