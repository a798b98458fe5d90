"""Neighbours: codes in the order of their values."""

from collections.abc import Iterator
from fractions import Fraction

from labkit.numbers.formats import FloatFormat


def order_key(fmt: FloatFormat, code: int) -> int:
    """`code` as an unsigned integer of the same width that sorts as the values do.

    Positive codes already sort; a set sign bit reverses the order, so those are flipped, and the sign bit is turned over. Any
    radix sort of floats does the same. -0 comes just below +0; NaNs come at the ends, by their sign; the NaN of a "fnuz"
    format comes last.
    """
    code = fmt.check_code(code)
    if fmt.specials == "fnuz":
        if code == fmt.sign_mask:
            return (1 << fmt.bits) - 1
        return code + fmt.sign_mask - 1 if code < fmt.sign_mask else _flip(fmt, code)
    return _flip(fmt, code) if code & fmt.sign_mask else code | fmt.sign_mask


def next_up(fmt: FloatFormat, code: int) -> int:
    """The code of the least value above that of `code` (IEEE 754 nextUp).

    From either zero that is the smallest positive value, from the smallest negative value it is -0 where there is one. The
    largest value steps to infinity, or stays where there is none; +infinity and NaNs stay.
    """
    kind = fmt.fields(code).kind
    if kind in ("quiet NaN", "signalling NaN"):
        return code
    if code & fmt.sign_mask:
        smaller = code - 1
        if kind == "zero":
            return 1
        return 0 if smaller == fmt.sign_mask and not fmt.has_negative_zero else smaller
    top = fmt.infinity_code if fmt.has_infinity else fmt.max_code
    return min(code + 1, top)


def next_down(fmt: FloatFormat, code: int) -> int:
    """The code of the greatest value below that of `code` (IEEE 754 nextDown); the mirror image of `next_up`."""
    if not fmt.signed:
        return code if fmt.fields(code).kind == "quiet NaN" else max(code - 1, 0)
    if fmt.specials == "fnuz" and code in (0, fmt.sign_mask):
        return fmt.sign_mask + 1 if code == 0 else code
    result = next_up(fmt, fmt.check_code(code) ^ fmt.sign_mask) ^ fmt.sign_mask
    return 0 if result == fmt.sign_mask and not fmt.has_negative_zero else result


def ulp(fmt: FloatFormat, code: int) -> Fraction:
    """The spacing of the format's numbers in the binade of `code`; ValueError for infinities and NaNs."""
    parts = fmt.fields(code)
    if parts.true_exponent is None:
        raise ValueError(f"{fmt.name} code {code:#x} is {parts.kind}, which has no ulp")
    return Fraction(2) ** (parts.true_exponent - fmt.fraction_bits)


def values(fmt: FloatFormat) -> Iterator[float]:
    """Every finite value once, ascending; ValueError for formats of more than 16 bits."""
    if fmt.bits > 16:
        raise ValueError(f"{fmt.name} has 2^{fmt.bits} codes, too many to list: at most 16 bits")
    if fmt.signed:
        for magnitude in range(fmt.max_code, 0, -1):
            yield fmt.decode(magnitude | fmt.sign_mask)
    for magnitude in range(fmt.max_code + 1):
        yield fmt.decode(magnitude)


def _flip(fmt: FloatFormat, code: int) -> int:
    return code ^ ((1 << fmt.bits) - 1)
