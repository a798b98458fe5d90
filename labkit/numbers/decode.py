"""From a code to its value and its parts."""

import math
from fractions import Fraction

from labkit.numbers.formats import Fields, FloatFormat, Kind


def decode(fmt: FloatFormat, code: int) -> float:
    """The value of `code` as a float, exactly: every catalogue format fits; NaN keeps its sign and loses its payload.

    Raises ValueError for a code out of range, and for a value of a custom format that no float equals.
    """
    magnitude = fmt.check_code(code) & fmt.magnitude_mask
    sign = -1.0 if code != magnitude else 1.0
    if fmt.specials == "fnuz" and code == fmt.sign_mask:
        return math.nan
    if magnitude > fmt.max_code:
        return math.copysign(math.inf if fmt.has_infinity and magnitude == fmt.infinity_code else math.nan, sign)
    significand, exponent = _scaled(fmt, magnitude)
    while significand and not significand & 1:
        significand, exponent = significand >> 1, exponent + 1
    width = significand.bit_length()
    if significand and (width > 53 or exponent < -1074 or exponent + width > 1024):
        raise ValueError(f"{fmt.name} code {code:#x} is not exactly a float; use decode_exact")
    return sign * math.ldexp(significand, exponent if significand else 0)


def decode_exact(fmt: FloatFormat, code: int) -> Fraction:
    """The value of `code` as a fraction (both zeros are 0); ValueError for infinities and NaNs."""
    parts = fields(fmt, code)
    if parts.significand is None:
        raise ValueError(f"{fmt.name} code {code:#x} is {parts.kind}, which no fraction equals")
    significand, exponent = _scaled(fmt, code & fmt.magnitude_mask)
    magnitude = Fraction(significand << exponent) if exponent >= 0 else Fraction(significand, 1 << -exponent)
    return -magnitude if parts.sign else magnitude


def _scaled(fmt: FloatFormat, magnitude: int) -> tuple[int, int]:
    """The value of a finite magnitude as an integer times a power of two: the integer and the power."""
    exponent = magnitude >> fmt.fraction_bits
    if fmt.is_scale:
        return 1, fmt.min_exponent + exponent
    fraction = magnitude & ((1 << fmt.fraction_bits) - 1)
    hidden = min(exponent, 1) << fmt.fraction_bits
    return hidden | fraction, fmt.min_exponent + max(exponent, 1) - 1 - fmt.fraction_bits


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
