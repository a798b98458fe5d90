"""One look for every figure: colours that survive grey print and colour blindness, and text for those who cannot see.

Colours are the Okabe-Ito set (Okabe and Ito 2008, "Color Universal Design"). A figure keeps a white page of its own, so that it
reads the same in a light and in a dark JupyterLab.
"""

import base64
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The Okabe-Ito colours by name.
COLORS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#6E6E6E",
}

#: Colour and hatch of each memory category, the same in every figure of the course.
CATEGORIES = {
    "parameters": (COLORS["blue"], ""),
    "gradients": (COLORS["orange"], "///"),
    "optimizer": (COLORS["green"], "..."),
    "activations": (COLORS["vermilion"], "\\\\\\"),
    "temporaries": (COLORS["purple"], "xxx"),
    "inputs": (COLORS["grey"], ""),
}

#: Colour, marker and line style of each precision setting, the same in every figure of the course.
PRECISIONS = {
    "64-true": (COLORS["black"], "s", "-"),
    "32-true": (COLORS["blue"], "o", "-"),
    "bf16-mixed": (COLORS["green"], "^", "-"),
    "16-mixed": (COLORS["sky"], "v", "-"),
    "16-mixed-unscaled": (COLORS["vermilion"], "x", "--"),
    "bf16-true": (COLORS["orange"], "D", "--"),
    "bf16-true-sr": (COLORS["purple"], "P", "-."),
    "bf16-true-kahan": (COLORS["grey"], "*", "-."),
    "16-true": (COLORS["vermilion"], "X", ":"),
}

_STYLE = {
    "figure.figsize": (8.0, 4.0),
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "font.family": "DejaVu Sans",
    "hatch.linewidth": 0.6,
    "savefig.bbox": "tight",
    "svg.hashsalt": "labkit",
}


def use_style() -> None:
    """Make the course's style the default of matplotlib in this process."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(_STYLE)
    order = ("blue", "orange", "green", "vermilion", "purple", "sky", "black")
    mpl.rcParams["axes.prop_cycle"] = cycler(color=[COLORS[name] for name in order])


def figure(
    title: str = "",
    *,
    x: str = "",
    y: str = "",
    size: tuple[float, float] = (8.0, 4.0),
    rows: int = 1,
    columns: int = 1,
    **options: Any,
) -> tuple["Figure", Any]:
    """A figure in the course's style and its axes (one, or an array when `rows * columns > 1`).

    `title` states the finding; `x` and `y` are axis labels with units. `options` go to `matplotlib.pyplot.subplots`.
    """
    import matplotlib.pyplot as plt

    use_style()
    fig, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **options)
    if rows * columns == 1:
        axes.set(title=title, xlabel=x, ylabel=y)
    elif title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return fig, axes


def label_line(ax: "Axes", value: float, text: str, *, axis: str = "y", color: str = "#333333") -> None:
    """Draw a dashed reference line at `value` on the given axis and name it beside its end."""
    if axis == "y":
        ax.axhline(value, color=color, linestyle="--", linewidth=1.2)
        ax.annotate(text, (1.0, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=color, size=9)
    else:
        ax.axvline(value, color=color, linestyle="--", linewidth=1.2)
        ax.annotate(
            text,
            (value, 1.0),
            xycoords=("data", "axes fraction"),
            ha="left",
            va="top",
            rotation=90,
            color=color,
            size=9,
        )


def png(fig: "Figure") -> bytes:
    """The figure as PNG bytes without a time stamp, so that the same figure is the same bytes."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def show(fig: "Figure", *, alt: str) -> None:
    """Show `fig` once in the notebook, with `alt` as the text read out in its place, and close it.

    Raises ValueError when `alt` is empty: a figure without words is lost to part of the readers.
    """
    if not alt.strip():
        raise ValueError("alt text '' is empty; say in one sentence what the figure shows")
    import matplotlib.pyplot as plt
    from IPython.display import display

    # Not through IPython's Image: its `alt` came with version 8, and Colab has 7.
    data = {"image/png": base64.b64encode(png(fig)).decode("ascii"), "text/plain": alt}
    display(data, metadata={"image/png": {"alt": alt}}, raw=True)
    plt.close(fig)
