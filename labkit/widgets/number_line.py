"""NumberLine: which numbers the formats have around a point, and where a value lands under each rounding."""

import math
from typing import Any

import traitlets

from labkit.widgets.base import LabWidget, checked, refused_as, script, style
from labkit.widgets.bit_viewer import check_formats
from labkit.widgets.source import nearest_float, read_number, write_source

_FURTHEST_ZOOM = 40_000  # beyond the widest format that FloatFormat allows


def _check_number(value: Any) -> str:
    text = write_source(value)
    read_number(text)
    return text


def _check_center(value: Any) -> str:
    text = write_source(value)
    if read_number(text).kind != "finite":
        raise ValueError(f"{text!r} is not a finite number, as the centre has to be")
    return text


def _check_zoom(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _FURTHEST_ZOOM:
        raise ValueError(f"{value!r} is not a number of doublings: the line is 2^zoom wide, in quarter steps")
    return round(4 * value) / 4


class NumberLine(LabWidget):
    """The representable numbers of `formats` on one line, to zoom and pan from whole binades to single ulps.

    `value`: the number that is rounded (as in BitViewer). `center`, by default the value: the middle of the line. `zoom`: the
    line is 2^zoom wide, in quarter steps; by default it shows the value's binade and what is around it.

    Traits to read, set or observe: `source` (the exact text of the value), `value` (the nearest float), `center`, `zoom`,
    `formats`. Bad input raises ValueError or TypeError and changes nothing.
    """

    _esm = script("codec.js", "dom.js", "number_line.js")
    _css = style("number_line.css")
    _shown = ("source", "formats", "center", "zoom")

    source = checked(_check_number, default="1")
    formats = checked(check_formats, default=check_formats(("fp16", "bf16")))
    center = checked(_check_center, default="1")
    zoom = checked(_check_zoom, default=1)
    value = traitlets.Any(1.0)

    def __init__(
        self,
        value: Any = 1,
        *,
        formats: Any = ("fp16", "bf16", "fp8_e4m3fn"),
        center: Any = None,
        zoom: float | None = None,
    ) -> None:
        source = _check_number(value)
        number = read_number(source)
        if center is None:
            center = source if number.kind == "finite" else 0
        self._settling = True
        super().__init__(
            source=source, formats=formats, center=center, zoom=_usual_zoom(nearest_float(number)) if zoom is None else zoom
        )
        self.value = nearest_float(number)
        self._settling = False

    def _repr_of(self, name: str) -> str:
        if name == "formats":
            return repr(tuple(spec["name"] for spec in self.formats))
        return super()._repr_of(name)

    @traitlets.validate("value")
    def _take_value(self, proposal: Any) -> float:
        if self._settling:
            return proposal["value"]
        with refused_as("value"):
            self.source = write_source(proposal["value"])
        return self.value

    @traitlets.observe("source")
    def _on_source(self, change: Any) -> None:
        if self._settling:
            return
        self._settling = True
        try:
            self.value = nearest_float(read_number(self.source))
        finally:
            self._settling = False


def _usual_zoom(value: float) -> int:
    """A line that holds the value's own binade and reaches zero on the other side."""
    return math.frexp(value)[1] + 1 if math.isfinite(value) and value else 1
