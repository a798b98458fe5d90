"""Measured steps side by side: stacked bars by category, bars by module, and a line through peaks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.memory.report import STACK, MemoryReport
from labkit.memory.units import UNITS, best_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def stacked(reports: Mapping[Any, MemoryReport], title: str, *, x: str = "") -> "Figure":
    """One bar a report, its peak by category; the keys of `reports` name the bars."""
    from labkit import plots

    unit = best_unit([report.peak_bytes for report in reports.values()], binary=False)
    fig, ax = plots.figure(title, x=x, y=f"memory at the peak ({unit})", size=(8.0, 4.2))
    places = np.arange(len(reports))
    floor = np.zeros(len(reports))
    for name in STACK:
        heights = np.array([report.by_category[name] for report in reports.values()]) / UNITS[unit]
        if heights.any():
            color, hatch = plots.CATEGORIES[name]
            ax.bar(places, heights, 0.62, bottom=floor, color=color, edgecolor="white", hatch=hatch, linewidth=0.6, label=name)
            floor += heights
    for place, height in zip(places, floor, strict=True):
        ax.annotate(f"{height:,.1f}", (place, height), xytext=(0, 3), textcoords="offset points", ha="center", size=9)
    ax.set_xticks(places, [f"{key:,}" if isinstance(key, int) else str(key) for key in reports])
    ax.grid(axis="x", visible=False)
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), handleheight=1.2)
    return fig


def kept_bars(sizes: Mapping[str, int], title: str, *, highlight: str | None = None) -> "Figure":
    """Horizontal bars of the bytes that autograd keeps by part of a model, in the order given, one of them highlighted."""
    from labkit import plots

    unit = best_unit(list(sizes.values()), binary=False)
    fig, ax = plots.figure(title, x=f"kept for backward ({unit})", size=(8.0, 0.9 + 0.36 * len(sizes)))
    color, hatch = plots.CATEGORIES["activations"]
    for place, (name, size) in enumerate(sizes.items()):
        look = {"color": color, "hatch": hatch} if name == highlight else {"color": plots.COLORS["sky"]}
        width = size / UNITS[unit]
        ax.barh(place, width, 0.7, edgecolor="white", linewidth=0.6, **look)
        ax.annotate(f"{width:,.2f}", (width, place), xytext=(4, 0), textcoords="offset points", va="center", size=9)
    ax.set_yticks(range(len(sizes)), list(sizes))
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(axis="y", visible=False)
    return fig


def line(series: Mapping[str, tuple[Sequence[int], Sequence[int]]], title: str, *, x: str) -> "Figure":
    """Measured peaks (points) of each named series of (sizes, peaks in bytes), and the line through its first two points.

    The line is drawn back to 0, where it shows what does not depend on the size, and on to the last size, where it shows
    whether two measurements foretold the others.
    """
    from labkit import plots

    unit = best_unit([peak for _, peaks in series.values() for peak in peaks], binary=False)
    fig, ax = plots.figure(title, x=x, y=f"peak ({unit})", size=(8.0, 4.2))
    styles = [("blue", "o", "-", 11), ("vermilion", "s", "--", 6), ("green", "^", "-.", 6), ("purple", "D", ":", 6)]
    for (name, (sizes, peaks)), (color, marker, dash, size) in zip(series.items(), styles, strict=False):
        heights = np.array(peaks) / UNITS[unit]
        slope = (heights[1] - heights[0]) / (sizes[1] - sizes[0])
        ends = np.array([0, max(sizes)])
        look = {"color": plots.COLORS[color]}
        ax.plot(ends, heights[0] + slope * (ends - sizes[0]), dash, linewidth=1.2, **look)
        ax.plot(sizes, heights, marker, label=name, markersize=size, fillstyle="none" if size > 6 else "full", **look)
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=0)
    ax.legend()
    return fig
