"""BitViewer: one number in several formats at once, every bit a button, linked to Python both ways."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import traitlets

from labkit.numbers import OVERFLOWS, ROUNDINGS, FloatFormat, as_format
from labkit.widgets.base import LabWidget, checked, one_of, refused_as, script, style
from labkit.widgets.source import encodable, nearest_float, read_number, read_source, write_source

_SPEC = ("exponent_bits", "fraction_bits", "bias", "specials", "signed")


def spec_of(fmt: FloatFormat) -> dict[str, Any]:
    """`fmt` as the plain object that the browser works with."""
    return {"name": fmt.name} | {field: getattr(fmt, field) for field in _SPEC}


def format_of(spec: Any) -> FloatFormat:
    """The format that a name, a dtype, a FloatFormat or a plain object from the browser stands for."""
    if not isinstance(spec, dict):
        return as_format(spec)
    if set(spec) != {"name", *_SPEC}:
        raise ValueError(f"a format is described by name, {', '.join(_SPEC)}, not by {', '.join(map(str, spec)) or 'nothing'}")
    return FloatFormat(**spec)


def check_formats(formats: Any) -> list[dict[str, Any]]:
    """A check: one format or several, each name once, as plain objects."""
    listed = [formats] if isinstance(formats, (str, FloatFormat, dict)) or not isinstance(formats, Iterable) else list(formats)
    specs = [spec_of(format_of(one)) for one in listed]
    names = [spec["name"] for spec in specs]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"formats are one or more, each once, not {', '.join(names) or 'none'}")
    return specs


def _check_source(text: Any) -> str:
    text = write_source(text)
    # A pattern in a custom format can only be read once the formats are known; see BitViewer._check_pattern.
    if ":" not in text:
        read_number(text)
    return text


def _check_update(text: Any) -> str:
    text = "" if text is None else write_source(text)
    if text:
        read_number(text)
    return text


def _check_draw(draw: Any) -> float:
    if isinstance(draw, bool) or not isinstance(draw, (int, float)) or not 0 <= draw < 1:
        raise ValueError(f"{draw!r} is not a number from 0 up to but not including 1")
    return draw


def _check_codes(codes: Any) -> dict[str, str]:
    if not isinstance(codes, dict):
        raise TypeError(f"codes are a dict from format name to code, not {codes!r}")
    return {str(name): _hex_text(code) for name, code in codes.items()}


def _hex_text(code: Any) -> str:
    if isinstance(code, str) and (match := re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{1,64})", code)):
        return f"0x{match[1].upper()}"
    if isinstance(code, str):
        raise ValueError(f"{code[:80]!r} is not a hexadecimal code such as '0x3C00'")
    if isinstance(code, bool) or not isinstance(code, int) or code < 0:
        raise ValueError(f"{code!r} is not a code: give an int from 0 up or hexadecimal text")
    return f"0x{code:X}"


class BitViewer(LabWidget):
    """One value in every format of `formats`: flip, drag, type or step its bits and see what they mean.

    `value`: a number or its text; a float is the number that it holds, "0.1" is one tenth. `formats`: names, dtypes or
    FloatFormats. `rounding`, `overflow`: as in FloatFormat.encode; `draw`, from 0 up to below 1, decides stochastic rounding.
    `update`: a number to add, to see whether it changes the stored bits.

    Traits that change with the picture, to read, set or observe: `value` (the nearest float), `source` (the exact text, or a
    bit pattern "fp16:0x2E66"), `codes` (hexadecimal text by format; a format that cannot hold the value has no entry).
    Bad input raises ValueError or TypeError and changes nothing.
    """

    _esm = script("codec.js", "dom.js", "bit_viewer.js")
    _css = style("bit_viewer.css")
    _shown = ("source", "formats", "rounding", "overflow")

    source = checked(_check_source, default="1")
    formats = checked(check_formats, default=check_formats(("fp32", "fp16", "bf16")))
    codes = checked(_check_codes, default={})
    rounding = checked(one_of(*ROUNDINGS), default="nearest_even")
    overflow = checked(one_of(*OVERFLOWS), default="ieee")
    draw = checked(_check_draw, default=0.5)
    update = checked(_check_update, default="")
    value = traitlets.Any(1.0)

    def __init__(
        self,
        value: Any = 1,
        *,
        formats: Any = ("fp32", "fp16", "bf16"),
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        draw: float = 0.5,
        update: Any = "",
    ) -> None:
        self._settling = True
        super().__init__(
            source=write_source(value), formats=formats, rounding=rounding, overflow=overflow, draw=draw, update=update
        )
        self._settling = False
        self._settle()

    @classmethod
    def of(cls, tensor: Any, index: int | tuple[int, ...] = (), **options: Any) -> "BitViewer":
        """A viewer of one element of a live torch tensor, in the tensor's own format first: what the hand does is written back.

        `index` picks the element; negative numbers count from the end. `refresh()` reads the tensor again after other code
        changed it. Raises ValueError where the tensor has no such element or holds no floats.
        """
        from labkit.widgets.live import Element

        element = Element(tensor, index)
        others = check_formats(options.pop("formats", ("fp32", "fp16", "bf16")))
        own = spec_of(element.format)
        viewer = cls(element.source, formats=[own, *(spec for spec in others if spec["name"] != own["name"])], **options)
        viewer._element = element
        viewer.observe(viewer._write_back, names=["codes"])
        return viewer

    _element: Any = None

    def refresh(self) -> None:
        """Read the tensor element again; without a tensor there is nothing to do."""
        if self._element is not None:
            self.source = self._element.source

    def _write_back(self, change: Any) -> None:
        name = self._element.format.name
        if name in self.codes:
            self._element.write(int(self.codes[name], 16))

    @property
    def state(self) -> str:
        """Everything that is shown, as one line of text to share; `BitViewer.from_state` and the viewer's own box read it."""
        parts = {"value": self.source, "formats": ",".join(_format_text(spec) for spec in self.formats)}
        parts |= {"rounding": self.rounding, "overflow": self.overflow, "draw": repr(self.draw), "update": self.update}
        return urlencode(parts, safe=":,/^")

    @classmethod
    def from_state(cls, text: str) -> "BitViewer":
        """The viewer that a line from `state` describes; ValueError where it is no such line."""
        parts = dict(parse_qsl(text.strip(), keep_blank_values=True))
        wanted = {"value", "formats", "rounding", "overflow", "draw", "update"}
        if set(parts) != wanted:
            raise ValueError(f"a state names {', '.join(sorted(wanted))}, not {', '.join(sorted(parts)) or 'nothing'}")
        formats = [_format_from_text(part) for part in parts.pop("formats").split(",")]
        try:
            draw = float(parts.pop("draw"))
        except ValueError:
            raise ValueError("the draw in a state is a number from 0 up to below 1") from None
        return cls(parts.pop("value"), formats=formats, draw=draw, **parts)

    def _repr_of(self, name: str) -> str:
        if name == "formats":
            return repr(tuple(spec["name"] for spec in self.formats))
        return super()._repr_of(name)

    # --- one source of truth ---------------------------------------------------------------------------------------

    def _settled(self) -> tuple[dict[str, str], float]:
        formats = [format_of(spec) for spec in self.formats]
        source = read_source(self.source, formats)
        codes = {}
        for fmt in formats:
            same = source.format is not None and source.format.name == fmt.name
            code = source.code if same else self._code_in(fmt, encodable(source.number))
            if code is not None:
                codes[fmt.name] = f"0x{code:0{fmt.hex_digits}X}"
        return codes, nearest_float(source.number)

    def _code_in(self, fmt: FloatFormat, number: object) -> int | None:
        if isinstance(number, float) and number != number and not fmt.has_nan:
            return None
        draw = self.draw if self.rounding == "stochastic" else None
        return fmt.encode(number, rounding=self.rounding, overflow=self.overflow, draw=draw)

    def _settle(self) -> None:
        codes, value = self._settled()
        self._settling = True
        try:
            self.codes = codes
            self.value = value
        finally:
            self._settling = False

    @traitlets.validate("source")
    def _check_pattern(self, proposal: Any) -> str:
        with refused_as("source"):
            read_source(proposal["value"], [format_of(spec) for spec in self.formats])
        return proposal["value"]

    @traitlets.validate("formats")
    def _keep_source_readable(self, proposal: Any) -> list[dict[str, Any]]:
        """A bit pattern whose format is no longer shown goes on as the number that it stood for."""
        source = read_source(self.source, [format_of(spec) for spec in self.formats])
        if source.format is not None and spec_of(source.format) not in proposal["value"]:
            self.source = write_source(encodable(source.number))
        return proposal["value"]

    @traitlets.validate("value")
    def _take_value(self, proposal: Any) -> float:
        if self._settling:
            return proposal["value"]
        with refused_as("value"):
            self.source = write_source(proposal["value"])
        return self.value

    @traitlets.observe("source", "formats", "rounding", "overflow", "draw")
    def _on_change(self, change: Any) -> None:
        if not self._settling:
            self._settle()

    @traitlets.validate("codes")
    def _take_codes(self, proposal: Any) -> dict[str, str]:
        """A code set from Python becomes the source; one that only repeats the picture changes nothing."""
        if self._settling:
            return proposal["value"]
        current, _ = self._settled()
        formats = {spec["name"]: format_of(spec) for spec in self.formats}
        with refused_as("codes"):
            for name, text in proposal["value"].items():
                if name not in formats:
                    raise ValueError(f"{name!r} is not shown; the formats are {', '.join(formats)}")
                formats[name].check_code(int(text, 16))
        for name, text in proposal["value"].items():
            if name not in current or int(current[name], 16) != int(text, 16):
                self.source = f"{name}:{text}"
                break
        return self._settled()[0]


def _format_text(spec: dict[str, Any]) -> str:
    fmt = format_of(spec)
    if fmt == _known(fmt.name):
        return fmt.name
    return ":".join(
        str(part) for part in (fmt.name, *(getattr(fmt, f) for f in _SPEC[:4]), "signed" if fmt.signed else "unsigned")
    )


def _known(name: str) -> FloatFormat | None:
    try:
        return as_format(name)
    except ValueError:
        return None


def _format_from_text(text: str) -> FloatFormat:
    if ":" not in text:
        return as_format(text)
    parts = text.split(":")
    numbers = parts[1:4]
    if len(parts) != 6 or not all(part.lstrip("-").isdigit() for part in numbers) or parts[5] not in ("signed", "unsigned"):
        raise ValueError(f"{text!r} is not a format such as 'custom:5:10:15:ieee:signed'")
    exponent_bits, fraction_bits, bias = (int(part) for part in numbers)
    return FloatFormat(parts[0], exponent_bits, fraction_bits, bias=bias, specials=parts[4], signed=parts[5] == "signed")  # type: ignore[arg-type]
