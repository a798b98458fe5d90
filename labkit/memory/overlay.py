"""Several measured steps in one figure: their memory as it goes, and beside it what their steps take in time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.memory.report import MemoryReport
from labkit.memory.units import UNITS, best_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = (("black", "-"), ("blue", "-"), ("orange", "--"), ("green", "-."), ("vermilion", "-"), ("purple", ":"), ("sky", "--"))


def overlay(reports: Mapping[str, MemoryReport], step_ms: Mapping[str, float] | None = None, title: str = "") -> "Figure":
    """Live memory of each report over its step, and, where times are given, bars of the step times in ms, in the same order.

    Each line runs over its own allocations and frees, from the first to the last, so that equal parts of a step lie together.
    """
    from labkit import plots

    unit = best_unit((report.peak_bytes for report in reports.values()), binary=False)
    options = {"gridspec_kw": {"width_ratios": [2.6, 1]}} if step_ms else {}
    fig, axes = plots.figure(title, size=(9.4, 4.6), columns=2 if step_ms else 1, **options)
    left = axes[0] if step_ms else axes
    left.set(xlabel="the step, from its first to its last allocation", ylabel=f"live memory ({unit})", xticks=[])
    for (name, report), (color, line) in zip(reports.items(), _LINES * 3, strict=False):
        live = report.timeline["live"].to_numpy() / UNITS[unit]
        x = np.linspace(0, 1, len(live))
        peak = int(live.argmax())
        left.step(x, live, where="post", color=plots.COLORS[color], linestyle=line, linewidth=1.3, label=name)
        left.plot(x[peak], live[peak], "v", color=plots.COLORS[color], markersize=7)
    left.set_ylim(bottom=0)
    left.legend(loc="lower center", ncols=3)
    if step_ms:
        _time_bars(axes[1], step_ms)
    return fig


def _time_bars(ax: object, step_ms: Mapping[str, float]) -> None:
    from labkit import plots

    names = list(step_ms)
    colors = [plots.COLORS[color] for color, _ in (_LINES * 3)[: len(names)]]
    ax.barh(names[::-1], [step_ms[name] for name in names[::-1]], color=colors[::-1], height=0.6)  # type: ignore[attr-defined]
    ax.set(xlabel="time of a step (ms)")  # type: ignore[attr-defined]
    ax.grid(axis="y", visible=False)  # type: ignore[attr-defined]


def in_words(reports: Mapping[str, MemoryReport], step_ms: Mapping[str, float] | None = None) -> str:
    """The figure for those who cannot see it: each step's peak, where it is, and its time."""
    parts = []
    for name, report in reports.items():
        time = f", {step_ms[name]:.0f} ms" if step_ms else ""
        parts.append(f"{name} peaks at {report.peak_bytes / 1e6:.1f} MB in {report.phase_at_peak}{time}")
    return f"Lines of live memory over one step: {'; '.join(parts)}."
