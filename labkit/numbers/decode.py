"""From a code to its value and its parts."""

import math
from fractions import Fraction

from labkit.numbers.formats import Fields, FloatFormat, Kind


def decode(fmt: FloatFormat, code: int) -> float:
    """The value of `code` as a float, exactly: every catalogue format fits; NaN keeps its sign and loses its payload.

    Raises ValueError for a code out of range, and for a value of a custom format that no float equals.
    """
    parts = fields(fmt, code)
    sign = -1.0 if parts.sign and (fmt.specials != "fnuz" or parts.significand is not None) else 1.0
    if parts.significand is None or parts.true_exponent is None:
        return math.copysign(math.inf if parts.kind == "infinity" else math.nan, sign)
    exact = _magnitude(fmt, parts)
    try:
        value = float(exact)
    except OverflowError:
        value = math.inf
    if value != exact:
        raise ValueError(f"{fmt.name} code {code:#x} is not exactly a float; use decode_exact")
    return math.copysign(value, sign)


def decode_exact(fmt: FloatFormat, code: int) -> Fraction:
    """The value of `code` as a fraction (both zeros are 0); ValueError for infinities and NaNs."""
    parts = fields(fmt, code)
    if parts.significand is None:
        raise ValueError(f"{fmt.name} code {code:#x} is {parts.kind}, which no fraction equals")
    return -_magnitude(fmt, parts) if parts.sign else _magnitude(fmt, parts)


def fields(fmt: FloatFormat, code: int) -> Fields:
    """`code` taken apart into sign, exponent, fraction and its class.

    In "ieee" formats the top fraction bit of a NaN tells quiet (1) from signalling (0) and the rest is its payload; the
    single NaN of the other formats is quiet and has payload 0. Raises ValueError for a code out of range.
    """
    code = fmt.check_code(code)
    magnitude = code & fmt.magnitude_mask
    sign = int(code != magnitude)
    exponent = magnitude >> fmt.fraction_bits
    fraction = magnitude & ((1 << fmt.fraction_bits) - 1)
    kind = _kind(fmt, code, magnitude, fraction)
    if kind in ("quiet NaN", "signalling NaN"):
        quiet_bit = 1 << (fmt.fraction_bits - 1) if fmt.specials == "ieee" else fmt.magnitude_mask + 1
        payload = fraction & (quiet_bit - 1) if fmt.specials == "ieee" else 0
        return Fields(sign, exponent, fraction, kind, payload, None, None)
    if kind == "infinity":
        return Fields(sign, exponent, fraction, kind, None, None, None)
    hidden = int(kind == "normal")
    true_exponent = fmt.min_exponent + (exponent if fmt.is_scale else max(exponent, 1) - 1)
    significand = hidden + Fraction(fraction, 1 << fmt.fraction_bits)
    return Fields(sign, exponent, fraction, kind, None, true_exponent, significand)


def _kind(fmt: FloatFormat, code: int, magnitude: int, fraction: int) -> Kind:
    if fmt.specials == "fnuz" and code == fmt.sign_mask:
        return "quiet NaN"
    if magnitude > fmt.max_code:
        if fmt.specials != "ieee":
            return "quiet NaN"
        if fraction == 0:
            return "infinity"
        return "quiet NaN" if fraction >> (fmt.fraction_bits - 1) else "signalling NaN"
    if fmt.is_scale or magnitude >> fmt.fraction_bits:
        return "normal"
    return "subnormal" if magnitude else "zero"


def _magnitude(fmt: FloatFormat, parts: Fields) -> Fraction:
    assert parts.significand is not None and parts.true_exponent is not None
    return parts.significand * Fraction(2) ** parts.true_exponent
