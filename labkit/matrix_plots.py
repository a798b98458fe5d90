"""Figures of the training matrix: what each setting costs in memory and time, what it holds, what it learns.

Each function takes the frame that `labkit.experiment.matrix` returns (one row a run) and gives a `Picture`: the figure and its
words. MB are 10^6 bytes; points are means over the seeds, bars reach from the smallest to the largest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from labkit import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CATEGORIES = ("parameters", "optimizer", "gradients", "inputs", "activations", "temporaries")
_MEASURES = ("val_loss", "step_ms", "tokens_per_s", "peak_bytes", "recompute_overhead")
_UNKNOWN = ("#333333", "o", "-")


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure and the words for those who cannot see it."""

    figure: "Figure"
    alt: str

    def show(self) -> None:
        """Show the figure in the notebook."""
        plots.show(self.figure, alt=self.alt)


def per_setting(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a precision and policy, as they appear: runs, how many diverged, and mean, low and high of each measure.

    Losses are of finished runs only (NaN where every run diverged); the other measures are of all runs.
    """
    finished = frame.assign(val_loss=frame["val_loss"].where(frame["status"] == "ok"))
    groups = finished.groupby(["precision", "checkpointing"], sort=False)
    columns = {
        "runs": groups["seed"].size(),
        "diverged": groups["status"].agg(lambda status: int((status == "diverged").sum())),
    }
    for name in _MEASURES:
        columns |= {name: groups[name].mean(), f"{name}_low": groups[name].min(), f"{name}_high": groups[name].max()}
    columns |= {name: groups[name].mean() for name in CATEGORIES}
    return pd.DataFrame(columns).reset_index()


def undominated(table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Of the rows of `per_setting` without a diverged run, those that no other beats in `x` and `y`, by rising `x`."""
    best = float("inf")
    rows = []
    for index, row in table[table["diverged"] == 0].sort_values([x, y]).iterrows():
        if row[y] < best:
            best = row[y]
            rows.append(index)
    return table.loc[rows]


class Choice(NamedTuple):
    """Two rows of `per_setting`: the lowest loss, and the smallest peak among losses that its seeds reach too."""

    best: pd.Series
    smallest: pd.Series


def as_good_as_the_best(table: pd.DataFrame) -> Choice | None:
    """The setting with the lowest loss, and the smallest that chance alone may set apart from it; None if none finished."""
    finished = table[table["diverged"] == 0]
    if finished.empty:
        return None
    best = finished.loc[finished["val_loss"].idxmin()]
    close = finished[finished["val_loss"] <= best["val_loss_high"]]
    return Choice(best, close.loc[close["peak_bytes"].idxmin()])


def pareto(frame: pd.DataFrame, title: str | None = None) -> Picture:
    """Memory against time: peak (MB) and step time (ms) of every setting, with the front of those that nothing beats."""
    table = per_setting(frame)
    front = undominated(table, "peak_bytes", "step_ms")
    fig, ax = plots.figure(
        title or f"{len(front)} of {len(table)} settings are on the front of memory and time",
        x="peak of a step (MB)",
        y="time of a step (ms)",
        size=(8.6, 5.0),
    )
    ax.step(front["peak_bytes"] / 1e6, front["step_ms"], where="post", color="#555555", linestyle="--", linewidth=1.2, zorder=1)
    for precision, rows in table.groupby("precision", sort=False):
        color, _, _ = plots.PRECISIONS.get(str(precision), _UNKNOWN)
        rows = rows.sort_values("peak_bytes")
        ax.plot(rows["peak_bytes"] / 1e6, rows["step_ms"], color=color, linewidth=0.8, alpha=0.45, zorder=1)
    _points(ax, table, "step_ms", front, named=front.index)
    _legend(ax, table)
    listed = "; ".join(f"{_name(row)} {row.peak_bytes / 1e6:.1f} MB, {row.step_ms:.0f} ms" for row in front.itertuples())
    return Picture(fig, f"Peak memory against step time of {len(table)} settings. On the front: {listed or 'none'}.")


def loss_against_memory(frame: pd.DataFrame, title: str | None = None) -> Picture:
    """Peak (MB) against validation loss (nats per token), with the spread over seeds; diverged settings stand at the top.

    The band is the spread of the setting with the lowest mean loss: what lies in it, the seeds cannot tell apart.
    """
    table = per_setting(frame)
    front, choice = undominated(table, "peak_bytes", "val_loss"), as_good_as_the_best(table)
    finished = table[table["diverged"] < table["runs"]]
    lost = table[table["diverged"] > 0]
    fig, ax = plots.figure(
        title or _loss_title(choice), x="peak of a step (MB)", y="validation loss (nats per token)", size=(8.6, 5.0)
    )
    if choice is not None:
        ax.axhspan(
            choice.best["val_loss_low"], choice.best["val_loss_high"], color="#009E73", alpha=0.12, linewidth=0, zorder=0
        )
    _points(ax, finished, "val_loss", front, named=[] if choice is None else [choice.smallest.name])
    for row in lost[lost["diverged"] == lost["runs"]].itertuples():
        color, _, _ = plots.PRECISIONS.get(row.precision, _UNKNOWN)
        ax.plot(
            row.peak_bytes / 1e6, 0.97, "x", color=color, markersize=9, markeredgewidth=2, transform=ax.get_xaxis_transform()
        )
    if len(lost):
        ax.text(0.01, 0.92, "x at the top: every run diverged", transform=ax.transAxes, size=9, color="#555555")
        ax.margins(y=0.2)
    _legend(ax, table)
    listed = "; ".join(f"{_name(row)} {row.peak_bytes / 1e6:.1f} MB, loss {row.val_loss:.3f}" for row in finished.itertuples())
    gone = ", ".join(_name(row) for row in lost.itertuples()) or "none"
    return Picture(fig, f"Points of peak memory against validation loss: {listed or 'none'}. With a diverged run: {gone}.")


def categories(frame: pd.DataFrame, title: str | None = None) -> Picture:
    """What the peak of each setting is made of: one bar a setting, stacked by category (MB)."""
    table = per_setting(frame).iloc[::-1].reset_index(drop=True)
    fig, ax = plots.figure(
        title or _category_title(table), x="at the peak of a step (MB)", size=(8.6, 1.4 + 0.3 * max(len(table), 2))
    )
    left = pd.Series(0.0, index=table.index)
    for name in CATEGORIES:
        color, hatch = plots.CATEGORIES[name]
        width = table[name] / 1e6
        if width.any():
            ax.barh(table.index, width, left=left, height=0.72, color=color, hatch=hatch, edgecolor="white", lw=0.4, label=name)
        left = left + width
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.set_yticks(table.index, [_name(row) for row in table.itertuples()])
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    bars = "; ".join(
        f"{_name(row)} {row.peak_bytes / 1e6:.1f} MB, of which activations {row.activations / 1e6:.1f}"
        for row in table.iloc[::-1].itertuples()
    )
    return Picture(fig, f"Stacked bars of the peak by category. {bars}.")


def curves(
    frame: pd.DataFrame, *, floor: float | None = None, checkpointing: str = "none", title: str | None = None
) -> Picture:
    """Training loss (nats per token) by step, one line a precision: mean over the seeds, band from lowest to highest.

    `frame` is that of `labkit.experiment.read_curves`; `floor` draws the entropy of the text, below which no model can stay.
    """
    chosen = frame[frame["checkpointing"] == checkpointing]
    if chosen.empty:
        known = ", ".join(dict.fromkeys(frame["checkpointing"]))
        raise ValueError(f"checkpointing {checkpointing!r} is not among the curves; there are: {known or 'none'}")
    fig, ax = plots.figure(
        title or "The loss of each precision setting as it trains",
        x="optimizer step",
        y="loss (nats per token)",
        size=(8.6, 4.6),
    )
    ends = []
    for precision, runs in chosen.groupby("precision", sort=False):
        color, _, line = plots.PRECISIONS.get(str(precision), _UNKNOWN)
        steps = runs.groupby("step")["loss"]
        mean = steps.mean()
        ax.fill_between(mean.index, steps.min(), steps.max(), color=color, alpha=0.15, linewidth=0)
        ax.plot(mean.index, mean, color=color, linestyle=line, label=precision)
        ends.append(f"{precision} ends at {mean.iloc[-1]:.3f}")
    if floor is not None:
        plots.label_line(ax, floor, f"entropy of the text: {floor:.3f} nats per token")
    ax.legend(loc="upper right")
    words = f" The floor is at {floor:.3f}." if floor is not None else ""
    return Picture(fig, f"Falling loss curves under checkpointing {checkpointing}: {'; '.join(ends)}.{words}")


def _name(row: object) -> str:
    return f"{row.precision} · {row.checkpointing}"  # type: ignore[attr-defined]


def _points(ax: "Axes", table: pd.DataFrame, y: str, front: pd.DataFrame, named: Iterable[int]) -> None:
    """One marker a setting with its spread as a bar; those on the front are filled, the others hollow, and some are named."""
    for row in table.itertuples():
        color, marker, _ = plots.PRECISIONS.get(row.precision, _UNKNOWN)
        on_front = row.Index in front.index
        x, middle = row.peak_bytes / 1e6, getattr(row, y)
        low, high = getattr(row, f"{y}_low"), getattr(row, f"{y}_high")
        ax.errorbar(x, middle, yerr=[[middle - low], [high - middle]], fmt="none", ecolor=color, elinewidth=1.1, capsize=3)
        face = color if on_front or marker in "xX" else "white"
        ax.plot(x, middle, marker, color=color, markerfacecolor=face, markersize=8, markeredgewidth=1.6, zorder=3)
        if row.Index in named:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
            style = {"textcoords": "offset points", "size": 8.5, "color": "#222222", "bbox": box, "zorder": 4}
            if y == "val_loss":  # under its bar: beside it stand the other policies, with the same loss
                left = 2 * row.peak_bytes < table["peak_bytes"].min() + table["peak_bytes"].max()
                ax.annotate(_name(row), (x, low), xytext=(0, -12), ha="left" if left else "right", **style)
            else:
                ax.annotate(_name(row), (x, middle), xytext=(8, 6), ha="left", **style)


def _legend(ax: "Axes", table: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for precision in dict.fromkeys(table["precision"]):
        color, marker, _ = plots.PRECISIONS.get(precision, _UNKNOWN)
        handles.append(Line2D([], [], color=color, marker=marker, linestyle="none", markersize=8, label=precision))
    handles.append(Line2D([], [], color="#333333", marker="o", linestyle="none", markersize=8, label="on the front"))
    hollow = {"color": "#333333", "marker": "o", "markerfacecolor": "white", "markeredgewidth": 1.6}
    handles.append(Line2D([], [], linestyle="none", markersize=8, label="beaten in both", **hollow))
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _loss_title(choice: Choice | None) -> str:
    if choice is None:
        return "No setting finished every run"
    return f"{_name(choice.smallest)} needs the least memory for a loss within the best one's spread"


def _category_title(table: pd.DataFrame) -> str:
    largest = table.loc[table["peak_bytes"].idxmax()]
    name = max(CATEGORIES, key=lambda each: largest[each])
    return f"The largest peak ({_name(largest)}) is {largest[name] / largest['peak_bytes']:.0%} {name}"
