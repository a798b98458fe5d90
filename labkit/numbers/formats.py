"""Floating-point formats as data: how many bits, which bias, which codes are special.

A format reads a code (the bits as an unsigned integer) as sign, exponent and fraction. All the verbs (`encode`, `decode`,
`fields`, `next_up`...) live in a file each; the methods here only hand over to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

Specials = Literal["ieee", "fn", "fnuz", "finite"]
Rounding = Literal["nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic"]
Overflow = Literal["ieee", "saturate"]
Kind = Literal["zero", "subnormal", "normal", "infinity", "quiet NaN", "signalling NaN"]

SPECIALS: tuple[str, ...] = get_args(Specials)
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
OVERFLOWS: tuple[str, ...] = get_args(Overflow)

MAX_EXPONENT_BITS, MAX_FRACTION_BITS, MAX_BIAS = 15, 112, 1 << 15


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of up to 128 bits.

    The value of a code is (-1)^sign * 2^(exponent - bias) * (1 + fraction / 2^fraction_bits); with a zero exponent field
    the hidden bit is 0 and the exponent counts as 1 (subnormals).

    `specials` says which codes are not numbers:

    - "ieee": the top exponent is infinity (fraction 0) and NaN (any other fraction).
    - "fn": no infinity; the one code with every magnitude bit set is NaN (OCP E4M3).
    - "fnuz": no infinity and no negative zero; the code that would be negative zero is NaN.
    - "finite": every code is a number (OCP FP6 and FP4).

    An unsigned format without fraction bits is a scale format (OCP E8M0): it has no zero, its code 0 is 2^-bias.

    `bias=None` takes 2^(exponent_bits - 1) - 1, one more for "fnuz", and 0 where there is no exponent field.
    Raises ValueError, TypeError where no such format can exist.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    #: None in the call, always an int afterwards.
    bias: int | None = None
    specials: Specials = "ieee"
    signed: bool = True

    def __post_init__(self) -> None:
        if self.bias is None:
            half = 1 << max(self.exponent_bits, 0) >> 1 if _is_count(self.exponent_bits) else 1
            object.__setattr__(self, "bias", half if self.specials == "fnuz" else max(half - 1, 0))
        _validate(self)

    # --- what the format is -------------------------------------------------------------------------------------

    @cached_property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.signed + self.exponent_bits + self.fraction_bits

    @cached_property
    def hex_digits(self) -> int:
        """Hexadecimal digits that write any code."""
        return -(-self.bits // 4)

    @cached_property
    def is_scale(self) -> bool:
        """Whether this is an unsigned power-of-two format, with no zero and no subnormals."""
        return not self.signed and self.fraction_bits == 0

    @cached_property
    def sign_mask(self) -> int:
        """The code with only the sign bit set; 0 in an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    @cached_property
    def magnitude_mask(self) -> int:
        """The code with every bit but the sign set."""
        return (1 << (self.exponent_bits + self.fraction_bits)) - 1

    @cached_property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number: 2^min_exponent."""
        assert self.bias is not None
        return -self.bias if self.is_scale else 1 - self.bias

    @cached_property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        if self.specials == "ieee":
            return self.infinity_code - 1
        return self.magnitude_mask - (self.specials == "fn")

    @cached_property
    def infinity_code(self) -> int:
        """Code of +infinity; ValueError where the format has none."""
        if self.specials != "ieee":
            raise ValueError(f"{self.name} has no infinity")
        return self.magnitude_mask >> self.fraction_bits << self.fraction_bits

    @cached_property
    def nan_code(self) -> int:
        """Code of the quiet NaN that `encode` writes (positive, no payload); ValueError where the format has none."""
        match self.specials:
            case "ieee":
                return self.infinity_code | 1 << (self.fraction_bits - 1)
            case "fn":
                return self.magnitude_mask
            case "fnuz":
                return self.sign_mask
        raise ValueError(f"{self.name} has no NaN: each of its codes is a number")

    @property
    def has_infinity(self) -> bool:
        """Whether some code is an infinity."""
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether some code is a NaN."""
        return self.specials != "finite"

    @property
    def has_zero(self) -> bool:
        """Whether some code is zero: all but scale formats."""
        return not self.is_scale

    @property
    def has_negative_zero(self) -> bool:
        """Whether zero has two codes."""
        return self.signed and self.specials != "fnuz"

    @property
    def max(self) -> float:
        """The largest finite number; ValueError where a float cannot hold it (then `decode_exact(max_code)` can)."""
        return self.decode(self.max_code)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a hidden bit of 1; ValueError where the format has none."""
        code = 0 if self.is_scale else 1 << self.fraction_bits
        if code > self.max_code:
            raise ValueError(f"{self.name} has no normal numbers")
        return self.decode(code)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number of all; in a format without subnormals that is its smallest normal."""
        return self.decode(0 if self.is_scale else 1)

    @property
    def eps(self) -> float:
        """Gap between 1 and the next number up, as 2^-fraction_bits."""
        return 2.0**-self.fraction_bits

    # --- verbs --------------------------------------------------------------------------------------------------

    def encode(
        self,
        value: object,
        *,
        rounding: Rounding = "nearest_even",
        overflow: Overflow = "ieee",
        draw: float | None = None,
    ) -> int:
        """The code of `value`, rounded once; see `labkit.numbers.encode.encode`."""
        from labkit.numbers.encode import encode

        return encode(self, value, rounding=rounding, overflow=overflow, draw=draw)

    def decode(self, code: int) -> float:
        """The value of `code`, exactly; see `labkit.numbers.decode.decode`."""
        from labkit.numbers.decode import decode

        return decode(self, code)

    def decode_exact(self, code: int) -> Fraction:
        """The value of a finite `code` as a fraction; see `labkit.numbers.decode.decode_exact`."""
        from labkit.numbers.decode import decode_exact

        return decode_exact(self, code)

    def fields(self, code: int) -> "Fields":
        """`code` taken apart; see `labkit.numbers.decode.fields`."""
        from labkit.numbers.decode import fields

        return fields(self, code)

    def decimal(self, code: int) -> str:
        """Every digit of the value of `code`; see `labkit.numbers.text.decimal`."""
        from labkit.numbers.text import decimal

        return decimal(self, code)

    def ulp(self, code: int) -> Fraction:
        """The spacing of numbers at `code`; see `labkit.numbers.walk.ulp`."""
        from labkit.numbers.walk import ulp

        return ulp(self, code)

    def next_up(self, code: int) -> int:
        """The code of the next larger value; see `labkit.numbers.walk.next_up`."""
        from labkit.numbers.walk import next_up

        return next_up(self, code)

    def next_down(self, code: int) -> int:
        """The code of the next smaller value; see `labkit.numbers.walk.next_down`."""
        from labkit.numbers.walk import next_down

        return next_down(self, code)

    def order_key(self, code: int) -> int:
        """`code` as a number that sorts as the values do; see `labkit.numbers.walk.order_key`."""
        from labkit.numbers.walk import order_key

        return order_key(self, code)

    def values(self) -> Iterator[float]:
        """Every finite value, ascending; see `labkit.numbers.walk.values`."""
        from labkit.numbers.walk import values

        return values(self)

    def check_code(self, code: int) -> int:
        """`code` itself; TypeError, ValueError where it is no code of this format."""
        if not _is_count(code):
            raise TypeError(f"a code is an int from 0 to {(1 << self.bits) - 1:#x}, not {code!r}")
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"code {code:#x} is not a {self.name} code: those go from 0 to {(1 << self.bits) - 1:#x}")
        return int(code)


@dataclass(frozen=True)
class Fields:
    """A code taken apart."""

    #: 0 or 1; always 0 in an unsigned format.
    sign: int
    #: The exponent field as stored (biased).
    exponent: int
    #: The fraction field as stored.
    fraction: int
    kind: Kind
    #: Of a NaN: its fraction bits below the quiet bit. None for everything else.
    payload: int | None
    #: The power of two that multiplies the significand; None for infinities and NaNs.
    true_exponent: int | None
    #: Hidden bit + fraction, from 0 up to below 2; None for infinities and NaNs.
    significand: Fraction | None


def _is_count(number: object) -> bool:
    return hasattr(number, "__index__") and not isinstance(number, bool)


def _validate(fmt: FloatFormat) -> None:
    limits = {
        "exponent_bits": (0, MAX_EXPONENT_BITS),
        "fraction_bits": (0, MAX_FRACTION_BITS),
        "bias": (-MAX_BIAS, MAX_BIAS),
    }
    for field, (low, high) in limits.items():
        number = getattr(fmt, field)
        if not _is_count(number):
            raise TypeError(f"{field} is an int from {low} to {high}, not {number!r}")
        if not low <= number <= high:
            raise ValueError(f"{field} goes from {low} to {high}, not {number}")
    if fmt.specials not in SPECIALS:
        raise ValueError(f"specials {fmt.specials!r} is unknown; there are: {', '.join(SPECIALS)}")
    if fmt.specials == "ieee" and (fmt.exponent_bits == 0 or fmt.fraction_bits == 0):
        raise ValueError("specials 'ieee' needs an exponent bit and a fraction bit, to tell NaN from infinity")
    if fmt.specials == "fnuz" and not fmt.signed:
        raise ValueError("specials 'fnuz' needs a sign bit: its NaN is the code of negative zero")
    if fmt.max_code < (0 if fmt.is_scale else 1):
        raise ValueError(
            f"a format of {fmt.exponent_bits} exponent and {fmt.fraction_bits} fraction bits with specials "
            f"{fmt.specials!r} would hold no number but zero"
        )


#: The formats of this course, widest first. Sources: IEEE 754-2019 (fp64, fp32, fp16); Intel and Google's bfloat16; NVIDIA's
#: TF32 (Ampere white paper); OCP OFP8 1.0 (E4M3, E5M2); arXiv:2206.02915 (the fnuz pair); OCP MX 1.0 (FP6, FP4, E8M0).
FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt
    for fmt in (
        FloatFormat("fp64", 11, 52),
        FloatFormat("fp32", 8, 23),
        FloatFormat("tf32", 8, 10),
        FloatFormat("fp16", 5, 10),
        FloatFormat("bf16", 8, 7),
        FloatFormat("fp8_e4m3fn", 4, 3, specials="fn"),
        FloatFormat("fp8_e5m2", 5, 2),
        FloatFormat("fp8_e4m3fnuz", 4, 3, specials="fnuz"),
        FloatFormat("fp8_e5m2fnuz", 5, 2, specials="fnuz"),
        FloatFormat("fp6_e3m2", 3, 2, specials="finite"),
        FloatFormat("fp6_e2m3", 2, 3, specials="finite"),
        FloatFormat("fp4_e2m1", 2, 1, specials="finite"),
        FloatFormat("e8m0", 8, 0, specials="fn", signed=False),
    )
}

#: Other names of the same formats: torch's, numpy's and ml_dtypes'.
ALIASES: dict[str, str] = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "tensorfloat32": "tf32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3fn",
    "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2fnuz": "fp8_e5m2fnuz",
    "float6_e3m2fn": "fp6_e3m2",
    "float6_e2m3fn": "fp6_e2m3",
    "float4_e2m1fn": "fp4_e2m1",
    "float8_e8m0fnu": "e8m0",
}


def as_format(fmt: object) -> FloatFormat:
    """The format that `fmt` names: a FloatFormat, a name ("bf16", "bfloat16"), or a torch or numpy dtype.

    Raises ValueError, with the names there are, for any other.
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    name = getattr(fmt, "__name__", None) or str(fmt)
    name = name.removeprefix("torch.").lower()
    name = ALIASES.get(name, name)
    if name not in FORMATS:
        raise ValueError(f"format {fmt!r} is unknown; there are: {', '.join(FORMATS)}")
    return FORMATS[name]
