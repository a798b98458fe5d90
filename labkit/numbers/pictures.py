"""Formats drawn on axes that the caller made: the bits of a code, values on a line, range against precision, gaps.

Colours are those of the axes' own cycle, so that the pictures follow the style of the page they stand on.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.numbers.formats import FloatFormat, as_format
from labkit.numbers.table import binades
from labkit.numbers.text import binary

#: Colour of a field, hatch of its zeros and colour of the digit on its ones: more than one cue, so that it reads in grey.
FIELDS = {"sign": ("C2", "///", "white"), "exponent": ("C1", "", "black"), "fraction": ("C0", "", "white")}


def draw_bits(ax: Any, patterns: Sequence[tuple[str, Any, int]], *, align: str = "left") -> None:
    """Rows of bits as boxes on `ax`; a pattern is (label, format, code). Fields differ in colour, and in a letter above them.

    `align` "left" puts the first bits under each other, which is where formats of one exponent width agree.
    """
    longest = max(as_format(fmt).bits for _, fmt, _ in patterns)
    for row, (label, fmt, code) in enumerate(patterns):
        fmt = as_format(fmt)
        digits = binary(fmt, code).replace(" ", "")
        offset = 0 if align == "left" else longest - fmt.bits
        for index, digit in enumerate(digits):
            color, hatch, ink = FIELDS[_field_of(fmt, index)]
            filled = digit == "1"
            ax.add_patch(_box(offset + index, -row, color, hatch, filled))
            ax.text(offset + index + 0.45, -row, digit, ha="center", va="center", color=ink if filled else "black", size=8)
        ax.text(-0.6, -row, label, ha="right", va="center", size=9)
    _name_fields(ax, as_format(patterns[0][1]))
    ax.set(xlim=(-0.2, longest), ylim=(-len(patterns) + 0.35, 1.1), xticks=[], yticks=[])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _field_of(fmt: FloatFormat, index: int) -> str:
    if fmt.signed and index == 0:
        return "sign"
    return "exponent" if index < fmt.signed + fmt.exponent_bits else "fraction"


def _box(x: float, y: float, color: str, hatch: str, filled: bool) -> Any:
    from matplotlib.patches import Rectangle

    face = color if filled else "white"
    return Rectangle(
        (x, y - 0.38), 0.9, 0.76, facecolor=face, edgecolor=color, hatch=hatch if not filled else "", linewidth=1.2
    )


def _name_fields(ax: Any, fmt: FloatFormat) -> None:
    widths = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "fraction": fmt.fraction_bits}
    start = 0
    for name, width in widths.items():
        if width:
            label = name if width > 1 else name[0]
            ax.text(
                start + width / 2 - 0.05, 0.62, label, ha="center", va="bottom", color=FIELDS[name][0], size=9, weight="bold"
            )
        start += width


def draw_number_line(ax: Any, formats: Iterable[Any], *, low: float, high: float) -> None:
    """A row a format on `ax`: a tick at each of its values from `low` to `high`. Subnormals are shorter and orange."""
    names = []
    for row, fmt in enumerate(map(as_format, formats)):
        normal = [value for value in fmt.values() if low <= value <= high and abs(value) >= fmt.smallest_normal]
        small = [value for value in fmt.values() if low <= value <= high and abs(value) < fmt.smallest_normal]
        ax.vlines(normal, -row - 0.36, -row + 0.36, color="C0", linewidth=1.3)
        ax.vlines(small, -row - 0.2, -row + 0.2, color="C1", linewidth=1.6)
        ax.hlines(-row, low, high, color="#BBBBBB", linewidth=0.6, zorder=0)
        names.append(fmt.name)
    ax.set_yticks([-row for row in range(len(names))], names)
    margin = (high - low) * 0.02
    ax.set(xlim=(low - margin, high + margin), ylim=(-len(names) + 0.5, 0.6))
    ax.grid(False)


def draw_range(range_ax: Any, precision_ax: Any, formats: Iterable[Any]) -> None:
    """Range beside precision, a row a format: from the smallest to the largest positive number, and the fraction bits.

    The thin part of a range is subnormal: there each binade down costs a bit.
    """
    rows = [as_format(fmt) for fmt in formats]
    for row, fmt in enumerate(rows):
        bottom, normal, top = binades(fmt)
        range_ax.plot([normal, top + 1], [-row, -row], color="C0", linewidth=9, solid_capstyle="butt")
        range_ax.plot([bottom, normal], [-row, -row], color="C1", linewidth=3, solid_capstyle="butt")
        precision_ax.barh(-row, fmt.fraction_bits, color="C2", height=0.5)
        precision_ax.text(fmt.fraction_bits + 0.4, -row, str(fmt.fraction_bits), va="center", size=9)
    range_ax.set_yticks([-row for row in range(len(rows))], [f"{fmt.name}, {fmt.bits} bits" for fmt in rows])
    precision_ax.set_yticks([])
    for ax in (range_ax, precision_ax):
        ax.set_ylim(-len(rows) + 0.4, 0.6)
        ax.grid(axis="y", visible=False)


def draw_gaps(ax: Any, formats: Iterable[Any], *, low: int, high: int) -> None:
    """The gap between neighbours against the value, both as powers of two, from 2^`low` to 2^`high`, a staircase a format."""
    for index, fmt in enumerate(map(as_format, formats)):
        bottom, _, top = binades(fmt)
        exponents = range(max(low, bottom), min(high, top) + 1)
        gaps = [math.log2(fmt.ulp(fmt.encode(2.0**exponent, rounding="down"))) for exponent in exponents]
        style = ("-", "--", "-.", ":")[index % 4]
        ax.step([*exponents, exponents[-1] + 1], [*gaps, gaps[-1]], where="post", label=fmt.name, linestyle=style)
    ax.legend()
