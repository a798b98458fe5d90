"""From a number to a code: one rounding, from the exact value."""

from fractions import Fraction

from labkit.numbers.formats import OVERFLOWS, ROUNDINGS, FloatFormat, Overflow, Rounding
from labkit.numbers.parse import Exact, exact


def encode(
    fmt: FloatFormat,
    value: object,
    *,
    rounding: Rounding = "nearest_even",
    overflow: Overflow = "ieee",
    draw: float | None = None,
) -> int:
    """The code of `value` in `fmt`, rounded once from its exact value (`labkit.numbers.parse.exact` says what it may be).

    `rounding`: "nearest_even" and "nearest_away" (ties), "toward_zero", "up" (to +infinity), "down", or "stochastic":
    away from zero where `draw`, a number in [0, 1), is below the dropped part of the ulp.

    Overflow is judged after rounding as if the exponent had no limit (IEEE 754, 7.4). `overflow="ieee"` gives infinity, or
    NaN in a format without infinity, or the largest number where the rounding points that way; "saturate" gives the largest
    number, for infinities too (OCP OFP8). "finite" formats always saturate.

    A NaN keeps its sign and loses its payload: the result is the format's quiet NaN, sign bit set for a negative one
    ("fnuz" and unsigned formats have one NaN only). An unsigned format turns a negative number into NaN, or into its smallest
    value with "saturate". A scale format turns zero and all that is too small into its smallest value.

    Raises ValueError for NaN in a format without one, for text that is no number, and for an unknown mode.
    """
    _check_modes(rounding, overflow, draw)
    number = exact(value)
    if number.kind == "nan":
        return _signed(fmt, fmt.nan_code, number.sign)
    if not fmt.signed and number.sign:
        return _negative_in_unsigned(fmt, number, rounding, overflow, draw)
    if number.kind == "infinity":
        magnitude = fmt.max_code if overflow == "saturate" else _beyond(fmt)
    else:
        magnitude = _round_magnitude(fmt, number, rounding, draw)
        if magnitude > fmt.max_code:
            stays = overflow == "saturate" or rounding in _TO_MAXIMUM[number.sign]
            magnitude = fmt.max_code if stays else _beyond(fmt)
    return _signed(fmt, magnitude, number.sign)


#: The roundings that turn a finite overflow into the largest number, for a positive and a negative value.
_TO_MAXIMUM = (("toward_zero", "down"), ("toward_zero", "up"))


def _check_modes(rounding: str, overflow: str, draw: float | None) -> None:
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding {rounding!r} is unknown; there are: {', '.join(ROUNDINGS)}")
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow {overflow!r} is unknown; there are: {', '.join(OVERFLOWS)}")
    if rounding == "stochastic" and draw is None:
        raise ValueError("stochastic rounding needs draw=, a number from 0 up to but not including 1")
    if draw is not None and not 0 <= draw < 1:
        raise ValueError(f"draw goes from 0 up to but not including 1, not {draw!r}")


def _round_magnitude(fmt: FloatFormat, number: Exact, rounding: Rounding, draw: float | None) -> int:
    """The magnitude code nearest |number|; it may lie beyond the largest, as if there were more exponents."""
    numerator, denominator = number.numerator, number.denominator
    if numerator == 0:
        return 0
    exponent = _floor_log2(numerator, denominator)
    if fmt.is_scale and exponent < fmt.min_exponent:
        return 0
    if exponent > fmt.min_exponent + (1 << fmt.exponent_bits):
        return fmt.magnitude_mask + 1  # out of sight: no need to build its significand
    binade = max(exponent, fmt.min_exponent) - fmt.min_exponent
    shift = fmt.min_exponent + binade - fmt.fraction_bits  # log2 of the ulp
    numerator, denominator = numerator << max(-shift, 0), denominator << max(shift, 0)
    whole, rest = divmod(numerator, denominator)
    # One binade up is 2^fraction_bits codes up, and the hidden bit of `whole` is itself worth one such step.
    code = (binade << fmt.fraction_bits) + whole - fmt.is_scale
    odd = whole & 1
    return code + _rounds_away(rounding, number.sign, odd, rest, denominator, draw)


def _rounds_away(rounding: Rounding, sign: int, odd: int, rest: int, ulp: int, draw: float | None) -> bool:
    """Whether a significand (odd or not) that drops `rest`/`ulp` of an ulp goes to the next one away from zero.

    Without fraction bits both neighbours of a tie are odd; the larger one wins (IEEE 754-2019, 4.3.1).
    """
    match rounding:
        case "nearest_even":
            return 2 * rest + odd > ulp
        case "nearest_away":
            return 2 * rest >= ulp
        case "up":
            return rest > 0 and not sign
        case "down":
            return rest > 0 and bool(sign)
        case "stochastic":
            assert draw is not None
            chance = Fraction(draw)
            return chance.numerator * ulp < rest * chance.denominator
    return False


def _floor_log2(numerator: int, denominator: int) -> int:
    exponent = numerator.bit_length() - denominator.bit_length()
    return exponent - (numerator << max(-exponent, 0) < denominator << max(exponent, 0))


def _beyond(fmt: FloatFormat) -> int:
    """What stands above the largest number: infinity, else NaN, else nothing."""
    if fmt.has_infinity:
        return fmt.infinity_code
    return fmt.nan_code if fmt.has_nan else fmt.max_code


def _signed(fmt: FloatFormat, magnitude: int, sign: int) -> int:
    if not sign or (magnitude == 0 and not fmt.has_negative_zero):
        return magnitude
    return magnitude | fmt.sign_mask


def _negative_in_unsigned(fmt: FloatFormat, number: Exact, rounding: Rounding, overflow: Overflow, draw: float | None) -> int:
    if number.numerator == 0 and number.kind == "finite":
        return 0
    to_zero = fmt.has_zero and number.kind == "finite" and _round_magnitude(fmt, number, rounding, draw) == 0
    return 0 if to_zero or overflow == "saturate" or not fmt.has_nan else fmt.nan_code
