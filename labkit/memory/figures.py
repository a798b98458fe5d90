"""Predictions as stacked bars against a card's line."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.memory.report import STACK
from labkit.memory.units import UNITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.memory.prediction import Prediction

#: What comes on top of the tensors, with colour and hatch: rounding and workspaces, unused segments, CUDA itself.
OVERHEADS = {
    "workspaces, rounding": ("#333333", "++"),
    "unused in segments": ("#BBBBBB", "oo"),
    "CUDA context": ("#E4E4E4", ""),
}
#: What is spread over several devices and for a while whole on one (`labkit.memory.sharding`).
GATHERED = {"gathered": ("#F0E442", "||")}


def bars(
    predictions: Sequence["Prediction"],
    *,
    title: str,
    labels: Sequence[str] | None = None,
    limit: int | None = None,
    limit_name: str = "budget",
    unit: str = "GiB",
) -> "Figure":
    """One stacked bar a prediction, from parameters to CUDA's context, a line at `limit` bytes or the card's."""
    names = list(labels or (f"{p.precision}\n{p.checkpointing}\nbatch {p.batch_size}" for p in predictions))
    card = predictions[0].gpu
    if limit is None and card is not None:
        limit, limit_name = card.usable, card.name
    parts = [_parts(predicted) for predicted in predictions]
    return stacked(parts, names, title=title, limit=limit, limit_name=limit_name, unit=unit)


def stacked(
    parts: Sequence[Mapping[str, int]],
    labels: Sequence[str],
    *,
    title: str,
    limit: int | None = None,
    limit_name: str = "budget",
    unit: str = "GiB",
) -> "Figure":
    """One stacked bar for each of `parts` (bytes by memory category), its sum above it, and a line at `limit` bytes."""
    from labkit import plots

    fig, ax = plots.figure(title, y=f"memory ({unit})", size=(max(4.5, 1.5 * len(parts) + 3), 4.6))
    looks = {name: plots.CATEGORIES[name] for name in STACK} | GATHERED | OVERHEADS
    for place, sizes in enumerate(parts):
        floor = 0.0
        for name, (color, hatch) in looks.items():
            if name not in sizes:
                continue
            height = sizes[name] / UNITS[unit]
            ax.bar(place, height, 0.62, bottom=floor, color=color, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
            floor += height
        where = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        ax.annotate(f"{floor:.2f}", (place, floor), size=9, bbox=box, **where)
    if limit is not None:
        plots.label_line(ax, limit / UNITS[unit], f"{limit_name} {limit / UNITS[unit]:.2f} {unit}")
    ax.set_xticks(range(len(labels)), labels)
    # Set by hand: a bar of no height at the top of a stack would be taken for the figure's edge.
    highest = max([limit or 0, *(sum(sizes.values()) for sizes in parts)]) / UNITS[unit]
    ax.set_ylim(0, 1.12 * highest)
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    ax.legend(
        list(reversed(handles.values())),
        list(reversed(handles)),
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handleheight=1.2,
    )
    return fig


def _parts(predicted: "Prediction") -> dict[str, int]:
    parts = {name: predicted.by_category[name] for name in STACK}
    parts["workspaces, rounding"] = max(predicted.allocated_peak - predicted.live_peak, 0)
    parts["unused in segments"] = predicted.reserved_peak - predicted.allocated_peak
    parts["CUDA context"] = predicted.context
    return parts
