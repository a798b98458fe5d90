"""Any number, exactly: ints, floats, fractions, decimals and text become a sign and a ratio of two integers.

Nothing passes through a float on the way: "1.000000059604644775390626" keeps its last digit.
"""

import math
import numbers
import re
from decimal import Decimal
from typing import Literal, NamedTuple

#: Longest text that is read. The longest exact decimal of a 128-bit format has about 16,500 characters.
MAX_CHARACTERS = 100_000
#: Decimal exponents are cut here. The widest format that FloatFormat allows ends near 10^19,800 both ways, so a number beyond
#: 10^+-60,000 overflows or underflows alike whatever its exponent, and no power of ten of a hostile size is ever built.
MAX_DECIMAL_EXPONENT = 60_000
MAX_BINARY_EXPONENT = 200_000


class Exact(NamedTuple):
    """A number: (-1)^sign * numerator / denominator, or an infinity or a NaN with its sign."""

    kind: Literal["finite", "infinity", "nan"]
    sign: int
    numerator: int = 0
    denominator: int = 1


_DECIMAL = re.compile(r"(\d*)\.?(\d*)(?:e([+-]?\d+))?")
_HEX = re.compile(r"0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d+))?")
_SPECIAL: dict[str, Literal["infinity", "nan"]] = {"inf": "infinity", "infinity": "infinity", "nan": "nan"}


def exact(value: object) -> Exact:
    """`value` as a sign and a ratio, with no rounding.

    Takes int, float, Fraction, Decimal, numpy's numbers, and text: a decimal ("-1.5e-3"), a hex float ("0x1.8p-3"),
    "inf" or "nan" with or without a sign; underscores between digits are ignored. Raises ValueError for other text and
    TypeError for other types.
    """
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, Decimal):
        return _from_text(str(value).lower().replace("snan", "nan"))
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{value!r} is not a number: pass an int, float, Fraction, Decimal or text")
    if isinstance(value, numbers.Rational):
        numerator, denominator = int(value.numerator), int(value.denominator)
        return Exact("finite", int(numerator < 0), abs(numerator), denominator)
    sign = int(math.copysign(1, value) < 0)
    if math.isnan(value):
        return Exact("nan", sign)
    if math.isinf(value):
        return Exact("infinity", sign)
    # float has this method, and so have numpy's floating-point scalars, though numbers.Real does not promise it.
    numerator, denominator = value.as_integer_ratio()  # type: ignore[attr-defined]
    return Exact("finite", sign, abs(numerator), denominator)


def _from_text(text: str) -> Exact:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are read as a number")
    body = text.strip().lower().replace("\N{MINUS SIGN}", "-")
    body = re.sub(r"(?<=[0-9a-f])_(?=[0-9a-f])", "", body)
    sign = int(body.startswith("-"))
    body = body[1:] if body[:1] in ("-", "+") else body
    if body in _SPECIAL:
        return Exact(_SPECIAL[body], sign)
    for pattern, base, exponent_base, limit in (
        (_DECIMAL, 10, 10, MAX_DECIMAL_EXPONENT),
        (_HEX, 16, 2, MAX_BINARY_EXPONENT),
    ):
        match = pattern.fullmatch(body)
        if match and body.isascii() and (match[1] or match[2]):
            numerator, denominator = _ratio(match, base, exponent_base, limit)
            return Exact("finite", sign, numerator, denominator)
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise ValueError(f"{shown!r} is not a number; write a decimal (-1.5e-3), a hex float (0x1.8p-3), inf or nan")


def _ratio(match: re.Match[str], base: int, exponent_base: int, limit: int) -> tuple[int, int]:
    digits = (match[1] + match[2]).lstrip("0")
    if not digits:
        return 0, 1
    written = match[3] or "0"
    exponent = int(written) if len(written) <= 20 else math.copysign(10**20, -(written[0] == "-") or 1)
    per_digit = 4 if base == 16 else 1
    exponent = int(exponent) - per_digit * len(match[2])
    # Cut the exponent of the leading digit, not of the last one: 0.000...1e+N and 1000...e-N are ordinary numbers.
    leading = exponent + per_digit * len(digits)
    exponent += min(max(leading, -limit), limit) - leading
    # Decimal reads and converts any number of digits fast; int() refuses more than 4300 of them.
    significand = int(digits, 16) if base == 16 else int(Decimal(digits))
    power: int = exponent_base ** abs(exponent)
    return (significand * power, 1) if exponent >= 0 else (significand, power)
