"""A code as text: every decimal digit of its value, or its bits in groups."""

from decimal import Decimal
from fractions import Fraction

from labkit.numbers.formats import FloatFormat


def decimal(fmt: FloatFormat, code: int) -> str:
    """The exact decimal expansion of the value of `code`, without an exponent: "0.0999755859375", "-0", "inf", "nan".

    It always ends, because a power of two divides a power of ten.
    """
    parts = fmt.fields(code)
    minus = "-" if parts.sign and not (fmt.specials == "fnuz" and parts.significand is None) else ""
    if parts.significand is None:
        return minus + ("inf" if parts.kind == "infinity" else "nan")
    return minus + fraction_text(abs(fmt.decode_exact(code)))


def fraction_text(value: Fraction) -> str:
    """Every decimal digit of a `value` whose denominator is a power of two, without an exponent."""
    minus = "-" if value < 0 else ""
    places = value.denominator.bit_length() - 1
    # 2^-n = 5^n / 10^n. Decimal prints any number of digits fast; str(int) refuses more than 4300.
    digits = format(Decimal(abs(value.numerator) * 5**places), "f").rjust(places + 1, "0")
    return f"{minus}{digits[:-places]}.{digits[-places:]}" if places else minus + digits


def binary(fmt: FloatFormat, code: int) -> str:
    """The bits of `code` as "sign exponent fraction", each group there only where the format has it: "0 01111 0000000000"."""
    digits = format(fmt.check_code(code), f"0{fmt.bits}b")
    ends = (int(fmt.signed), int(fmt.signed) + fmt.exponent_bits, fmt.bits)
    return " ".join(group for group in (digits[: ends[0]], digits[ends[0] : ends[1]], digits[ends[1] :]) if group)
