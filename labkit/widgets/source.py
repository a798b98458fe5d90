"""The text that a widget shows as its value: a number, or a bit pattern in a format. The browser reads it alike."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from labkit.numbers import FloatFormat, as_format
from labkit.numbers.parse import MAX_BINARY_EXPONENT, MAX_CHARACTERS, Exact, exact

_PATTERN = re.compile(r"([A-Za-z]\w*):(0x[0-9a-fA-F]+)")
_POWER = re.compile(r"([+-]?)2(?:\^|\*\*)([+-]?\d+)", re.ASCII)
_RATIO = re.compile(r"([+-]?\d+)/(\d+)", re.ASCII)
_LONGEST_DECIMAL = 60  # a float whose exact decimal is longer is written as a hex float


class Source(NamedTuple):
    """What a source text means: the number, and the format and code where it is a bit pattern."""

    number: Exact
    format: FloatFormat | None = None
    code: int | None = None


def read_source(text: str, formats: Iterable[FloatFormat] = ()) -> Source:
    """What `text` means: "0.1", "0x1.8p-3", "2^-24", "1/3", "-inf", "nan", or a pattern such as "fp16:0x2E66".

    A pattern's format is one of `formats` or of the catalogue. Raises ValueError for any other text.
    """
    pattern = _PATTERN.fullmatch(text.strip())
    if pattern is None:
        return Source(read_number(text))
    fmt = next((one for one in formats if one.name == pattern[1]), None) or as_format(pattern[1])
    code = fmt.check_code(int(pattern[2], 16))
    return Source(_decoded(fmt, code), fmt, code)


def read_number(text: str) -> Exact:
    """The exact number that `text` writes; ValueError for any other text."""
    body = text.strip().replace("\N{MINUS SIGN}", "-")
    if power := _POWER.fullmatch(body):
        exponent = max(-MAX_BINARY_EXPONENT, min(MAX_BINARY_EXPONENT, int(power[2][:20])))
        return _exact(Fraction(2) ** exponent, power[1] == "-")
    ratio = _RATIO.fullmatch(body) if len(body) <= MAX_CHARACTERS else None
    if ratio and ratio[2].strip("0"):
        numerator, denominator = int(Decimal(ratio[1])), int(Decimal(ratio[2]))
        return Exact("finite", int(body.startswith("-")), abs(numerator), denominator)
    return exact(text)


def write_source(value: Any) -> str:
    """`value` (text, int, float, Fraction, Decimal, a NumPy or torch scalar) as a source text, without rounding it.

    A float is the number that it holds: 0.1 becomes its 55 digits, "0.1" stays what was typed. TypeError for other types.
    """
    if isinstance(value, str):
        return value.strip()
    if hasattr(value, "item") and callable(value.item):
        value = value.item()
    if isinstance(value, Decimal):
        return str(value)
    number = exact(value)
    if number.kind != "finite":
        return "-" * number.sign + ("inf" if number.kind == "infinity" else "nan")
    if isinstance(value, float):
        return _float_text(value)
    numerator, denominator = format(Decimal(number.numerator), "f"), format(Decimal(number.denominator), "f")
    return "-" * number.sign + (numerator if denominator == "1" else f"{numerator}/{denominator}")


def nearest_float(number: Exact) -> float:
    """The float nearest to an exact number; infinity beyond the largest."""
    sign = -1.0 if number.sign else 1.0
    if number.kind != "finite":
        return math.copysign(math.inf if number.kind == "infinity" else math.nan, sign)
    try:
        return math.copysign(number.numerator / number.denominator, sign)
    except OverflowError:
        return math.copysign(math.inf, sign)


def encodable(number: Exact) -> object:
    """`number` as something that FloatFormat.encode takes, signs of zero, infinity and NaN included."""
    if number.kind != "finite" or number.numerator == 0:
        return nearest_float(number)
    fraction = Fraction(number.numerator, number.denominator)
    return -fraction if number.sign else fraction


def _decoded(fmt: FloatFormat, code: int) -> Exact:
    parts = fmt.fields(code)
    if parts.significand is None or parts.significand == 0:
        return exact(fmt.decode(code))
    return _exact(abs(fmt.decode_exact(code)), bool(parts.sign))


def _exact(magnitude: Fraction, negative: bool) -> Exact:
    return Exact("finite", int(negative), magnitude.numerator, magnitude.denominator)


def _float_text(value: float) -> str:
    short = repr(value)
    if Fraction(short) == Fraction(value):
        return short.removesuffix(".0")
    full = format(Decimal(value), "f")
    return full if len(full) <= _LONGEST_DECIMAL else value.hex()
