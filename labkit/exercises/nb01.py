"""Exercises of notebook 01: reading and writing floats by hand."""

import math
from collections.abc import Callable

import torch

from labkit.exercises.core import Exercise, Wrong, expect
from labkit.numbers import FORMATS

FP16, E5M2 = FORMATS["fp16"], FORMATS["fp8_e5m2"]


# --- 01-stored ------------------------------------------------------------------------------------------------------


def stored() -> dict[str, float]:
    """A dict from "2049", "2051", "4097", "65519" and "1e-8" to the number that fp16 keeps of each."""
    return {"2049": 2048.0, "2051": 2052.0, "4097": 4096.0, "65519": 65504.0, "1e-8": 0.0}


_STORED_WHY = {
    "2049": "from 2048 on fp16 counts in twos; 2049 is a tie, and 2048 is the neighbour whose code is even",
    "2051": "2051 is a tie between 2050 and 2052; the code of 2052 is the even one",
    "4097": "from 4096 on fp16 counts in fours, so 4097 is no tie at all: 4096 is nearer",
    "65519": "the next number after 65504 would be 65536; infinity begins at their midpoint, 65520",
    "1e-8": "the smallest positive fp16 number is about 6e-8, and 1e-8 is nearer to 0",
}


def _check_stored(answer: Callable[[], dict[str, float]]) -> None:
    got = answer()
    expect(isinstance(got, dict), f"return a dict, such as {{'2049': ...}}, not {got!r}")
    for text, why in _STORED_WHY.items():
        expect(text in got, f"the dict has no entry for {text!r}")
        right = got[text] == FP16.decode(FP16.encode(text))
        expect(right, f"{text} does not become {got[text]!r} in fp16: {why}")


def _all_exact() -> dict[str, float]:
    return {text: float(text) for text in _STORED_WHY}


def _ties_up() -> dict[str, float]:
    return stored() | {"2049": 2050.0}


def _truncated() -> dict[str, float]:
    return stored() | {"2051": 2050.0}


def _early_infinity() -> dict[str, float]:
    return stored() | {"65519": math.inf}


def _smallest_normal_is_the_end() -> dict[str, float]:
    return stored() | {"1e-8": 2.0**-24}


# --- 01-decode ------------------------------------------------------------------------------------------------------


def decode_e5m2(code: int) -> float:
    """The value, as a float, of an fp8 E5M2 code from 0 to 255."""
    sign = -1.0 if code >> 7 else 1.0
    exponent, fraction = code >> 2 & 0b11111, code & 0b11
    if exponent == 0b11111:
        return sign * math.inf if fraction == 0 else math.nan
    if exponent == 0:
        return sign * 2.0**-14 * (fraction / 4)
    return sign * 2.0 ** (exponent - 15) * (1 + fraction / 4)


def _same(one: object, other: float) -> bool:
    if not isinstance(one, int | float):
        return False
    if math.isnan(other):
        return math.isnan(one)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def _check_decode(answer: Callable[[int], float]) -> None:
    order = [0x3C, 0x3D, 0x7B, 0xBC, 0x00, 0x01, 0x02, 0x80, 0x7C, 0xFC, 0x7D, 0x7E, *range(256)]
    for code in order:
        got, want = answer(code), E5M2.decode(code)
        if not _same(got, want):
            expect(False, f"code 0x{code:02X} is {want!r}, your function gave {got!r}: {_decode_why(code, want)}")


def _decode_why(code: int, want: float) -> str:
    kind = E5M2.fields(code).kind
    if kind == "zero":
        return "an exponent field of 0 switches the hidden bit off, and the sign bit of zero counts too"
    if kind == "subnormal":
        return "an exponent field of 0 switches the hidden bit off, and the power stays at 2^-14"
    if kind == "infinity":
        return "exponent all ones with fraction 0 is an infinity with the sign of its sign bit"
    if "NaN" in kind:
        return "exponent all ones with any other fraction is NaN"
    return "2^(exponent - 15) times 1 + fraction / 4, negative when the sign bit is 1"


def _no_subnormals(code: int) -> float:
    exponent, fraction = code >> 2 & 31, code & 3
    if exponent == 31:
        return decode_e5m2(code)
    return (-1.0) ** (code >> 7) * 2.0 ** (exponent - 15) * (1 + fraction / 4)


def _subnormal_power_off_by_one(code: int) -> float:
    exponent, fraction = code >> 2 & 31, code & 3
    return decode_e5m2(code) if exponent else (-1.0) ** (code >> 7) * 2.0**-15 * (fraction / 4)


def _top_exponent_counts(code: int) -> float:
    exponent, fraction = code >> 2 & 31, code & 3
    return decode_e5m2(code) if exponent < 31 else (-1.0) ** (code >> 7) * 2.0**16 * (1 + fraction / 4)


def _bias_16(code: int) -> float:
    value = decode_e5m2(code)
    return value / 2


# --- 01-encode ------------------------------------------------------------------------------------------------------


def encode_fp16(x: float) -> int:
    """The fp16 code of the finite float x >= 0: nearest, ties to even, infinity (0x7C00) beyond the largest number."""
    exponent = max(math.frexp(x)[1] - 1, -14) if x else -14  # frexp(0) would say 0
    steps = round(x / 2.0 ** (exponent - 10))
    return min((exponent + 14 << 10) + steps, 0x7C00)


_ENCODE_CASES = [1.0, 1.5, 1000.9, 0.1, 3.14159, 0.0, 2049.0, 2051.0, 1023.75, 4095.0, 6.1e-5, 2.0**-14]
_ENCODE_CASES += [1e-6, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 65504.0, 65519.999, 65520.0, 65536.0, 1e9, 1e300]


def _check_encode(answer: Callable[[float], int]) -> None:
    for x in _ENCODE_CASES:
        want, got = FP16.encode(x), answer(x)
        expect(isinstance(got, int), f"a code is an int, your function gave {got!r} for {x!r}")
        if got != want:
            expect(False, f"{x!r} is 0x{want:04X}, your function gave {got:#06x}: {_encode_why(x)}")


def _encode_why(x: float) -> str:
    if x == 0:
        return "zero has no power of two below it (math.frexp(0.0) says 0), so give it the lowest exponent"
    if x >= 65520:
        return "65520 and all above round to infinity"
    if x < 2.0**-14:
        return "below 2^-14 the ulp stays 2^-24, and the code is simply the number of ulps, ties to even"
    if x in (2049.0, 2051.0, 1023.75):
        return "a tie goes to the even code"
    return "the ulp at 2^e is 2^(e - 10); count the ulps and round to the nearest whole number"


def _truncate(x: float) -> int:
    exponent = max(math.frexp(x)[1] - 1, -14) if x else -14
    return min((exponent + 14 << 10) + int(x / 2.0 ** (exponent - 10)), 0x7C00)


def _half_up(x: float) -> int:
    exponent = max(math.frexp(x)[1] - 1, -14) if x else -14
    return min((exponent + 14 << 10) + math.floor(x / 2.0 ** (exponent - 10) + 0.5), 0x7C00)


def _flush(x: float) -> int:
    return encode_fp16(x) if x >= 2.0**-14 else 0


def _overflow_into_nan(x: float) -> int:
    exponent = min(max(math.frexp(x)[1] - 1, -14), 20) if x else -14
    return (exponent + 14 << 10) + min(round(x / 2.0 ** (exponent - 10)), 2048)


def _zero_has_exponent_zero(x: float) -> int:
    return encode_fp16(x) if x else 0x3400  # what frexp(0.0) == (0.0, 0) leads to


# --- 01-next-up -----------------------------------------------------------------------------------------------------


def next_up(code: int) -> int:
    """The code of the least fp16 number above that of `code` (0 to 0xFFFF, not NaN); infinity stays infinity."""
    if code == 0x7C00:
        return code
    if code == 0x8000:
        return 0x0001
    return code - 1 if code & 0x8000 else code + 1


def _check_next_up(answer: Callable[[int], int]) -> None:
    order = [0x3C00, 0x3FFF, 0x4000, 0x0000, 0xBC00, 0x8001, 0x8000, 0x7BFF, 0x7C00, 0xFC00, *range(0, 0x7C01, 7)]
    for code in [*order, *range(0x8000, 0xFC01, 7)]:
        want, got = FP16.next_up(code), answer(code)
        if got != want:
            value = FP16.decimal(code)
            shown = f"0x{got:04X}" if isinstance(got, int) and got >= 0 else repr(got)
            expect(False, f"after 0x{code:04X} ({value}) comes 0x{want:04X}, your function gave {shown}: {_next_why(code)}")


def _next_why(code: int) -> str:
    if code in (0x0000, 0x8000):
        return "both zeros are the same number, and the next one is the smallest positive"
    if code == 0x7C00:
        return "nothing is above infinity"
    if code & 0x8000:
        return "up from a negative number is toward zero, so its code gets smaller"
    return "the next code is the next number, across powers of two and up to infinity"


def _always_plus_one(code: int) -> int:
    return code + 1


def _minus_zero_first(code: int) -> int:
    return 0x0000 if code == 0x8000 else next_up(code)


def _past_infinity(code: int) -> int:
    return 0x7C01 if code == 0x7C00 else next_up(code)


def _by_adding_eps(code: int) -> int:
    value = FP16.decode(code)
    return code if math.isinf(value) else FP16.encode(value + 2.0**-10)


# --- 01-ulps --------------------------------------------------------------------------------------------------------


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """For float32 tensors without NaN: how many steps lie between a and b, an int64 tensor; -0.0 and 0.0 are 0 apart."""

    def position(x: torch.Tensor) -> torch.Tensor:
        code = x.view(torch.int32).long()
        return torch.where(code < 0, -(code & 0x7FFF_FFFF), code)

    return (position(a) - position(b)).abs()


def _check_ulps(answer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    one = 1.0
    above = one + 2.0**-23
    pairs = [
        (one, above, 1, "neighbours are one step apart"),
        (above, one, 1, "a distance does not depend on the order"),
        (-one, -above, 1, "it is the same among the negatives"),
        (0.0, -0.0, 0, "the two zeros are one number"),
        (2.0**-149, -(2.0**-149), 2, "from the smallest negative over zero to the smallest positive are two steps"),
        (one, 2.0, 2**23, "between 1 and 2 lie 2^23 steps"),
        (2.0**100, 2.0**101, 2**23, "each binade has 2^23 steps, whatever its size"),
        (-3e38, 3e38, 2 * FORMATS["fp32"].encode(3e38), "the count can exceed what int32 holds: use int64"),
    ]
    for a, b, want, why in pairs:
        got = answer(torch.tensor([a]), torch.tensor([b]))
        expect(isinstance(got, torch.Tensor), f"return a tensor, your function gave {type(got).__name__}")
        expect(got.tolist() == [want], f"from {a!r} to {b!r} it is {want} steps, your function gave {got.tolist()}: {why}")


def _in_eps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b).abs() / 2.0**-23).long()


def _raw_codes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.view(torch.int32).long() - b.view(torch.int32).long()).abs()


def _signed_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def position(x: torch.Tensor) -> torch.Tensor:
        code = x.view(torch.int32).long()
        return torch.where(code < 0, -(code & 0x7FFF_FFFF), code)

    return position(b) - position(a)


def _in_int32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def position(x: torch.Tensor) -> torch.Tensor:
        code = x.view(torch.int32)
        return torch.where(code < 0, -(code & 0x7FFF_FFFF), code)

    return (position(a) - position(b)).abs()


EXERCISES = [
    Exercise(
        id="01-stored",
        solution=stored,
        check=_check_stored,
        hints=(
            "How far apart are fp16 numbers at 2048? At 4096? The ulp at 2^e is 2^(e - 10).",
            "Only a number exactly in the middle is a tie: 2049 is one, between 2048 and 2050. Is 4097, between 4096 and 4100?",
            "The largest number is 65504; the next would be 65536. The smallest positive number is 2^-24, about 6e-8.",
        ),
        wrong=(
            Wrong(_all_exact, "fp16 holds whole numbers exactly", "from 2048 on fp16 counts in twos"),
            Wrong(_ties_up, "a tie rounds up", "2048 is the neighbour whose code is even"),
            Wrong(_truncated, "conversion drops the surplus bits", "2051 is a tie between 2050 and 2052"),
            Wrong(_early_infinity, "anything above the largest number is infinite", "infinity begins at their midpoint"),
            Wrong(_smallest_normal_is_the_end, "a positive number cannot become zero", "nearer to 0"),
        ),
        note="Two questions answer all five: how large is the ulp here, and is this exactly midway?",
    ),
    Exercise(
        id="01-decode",
        solution=decode_e5m2,
        check=_check_decode,
        hints=(
            "Cut the byte into 1, 5 and 2 bits, as the fp16 decoder above does: shifts and masks.",
            "The same three rules hold: exponent all ones, exponent zero, everything else. The fraction counts in quarters.",
            "With exponent 0: `sign * 2.0**-14 * (fraction / 4)`. With 31: infinity if the fraction is 0, else NaN.",
        ),
        wrong=(
            Wrong(_no_subnormals, "the hidden bit is always 1", "switches the hidden bit off"),
            Wrong(_subnormal_power_off_by_one, "subnormals have the exponent 0 - 15", "the power stays at 2^-14"),
            Wrong(_top_exponent_counts, "the largest exponent is an exponent like the others", "is an infinity"),
            Wrong(_bias_16, "the bias is half of 32", "2^(exponent - 15)"),
        ),
        note="E5M2 is fp16 with eight fraction bits cut off: the same range, the same rules, one decimal digit at best.",
    ),
    Exercise(
        id="01-encode",
        solution=encode_fp16,
        check=_check_encode,
        hints=(
            "`math.frexp(x)[1] - 1` is the power of two at or below x. The exponent never goes below -14.",
            "The number of ulps is `round(x / 2.0 ** (exponent - 10))`; Python's `round` sends ties to the even side.",
            "Put together: `(exponent + 14 << 10) + steps`. What lies above 0x7C00 must become 0x7C00.",
        ),
        wrong=(
            Wrong(_truncate, "conversion cuts off", "count the ulps and round"),
            Wrong(_half_up, "halves round up", "a tie goes to the even code"),
            Wrong(_flush, "below the smallest normal number all is zero", "the ulp stays 2^-24"),
            Wrong(_zero_has_exponent_zero, "zero needs no thought", "zero has no power of two below it"),
            Wrong(_overflow_into_nan, "a too large exponent takes care of itself", "round to infinity"),
        ),
        note="One rounding, from the exact number, and an integer addition. Carries and subnormals need no case of their own.",
    ),
    Exercise(
        id="01-next-up",
        solution=next_up,
        check=_check_next_up,
        hints=(
            "For positive codes it is one addition, even across a power of two and into infinity.",
            "A negative number goes up when its magnitude goes down. What does that do to the code?",
            "Treat two codes apart: 0x7C00 has nothing above it, and from -0 (0x8000) the next number is 0x0001.",
        ),
        wrong=(
            Wrong(_always_plus_one, "a larger code is a larger number, negatives too", "its code gets smaller"),
            Wrong(_minus_zero_first, "-0 is less than 0", "both zeros are the same number"),
            Wrong(_past_infinity, "there is always a next code", "nothing is above infinity"),
            Wrong(_by_adding_eps, "eps is the gap everywhere", "the next code is the next number"),
        ),
        note="IEEE 754 calls it nextUp. Adding eps works between 1 and 2 only; adding 1 to the code works everywhere.",
    ),
    Exercise(
        id="01-ulps",
        solution=ulp_distance,
        check=_check_ulps,
        hints=(
            "`x.view(torch.int32)` gives the codes; for positive numbers their difference is the answer already.",
            "Give each number its position on the line: the magnitude code, negated when the sign bit is set. Zeros get 0.",
            "`torch.where(code < 0, -(code & 0x7FFF_FFFF), code)`, in int64, then the absolute difference.",
        ),
        wrong=(
            Wrong(_in_eps, "an ulp is eps", "from the smallest negative over zero"),
            Wrong(_raw_codes, "codes sort as they are", "the two zeros are one number"),
            Wrong(_signed_distance, "a distance has a sign", "does not depend on the order"),
            Wrong(_in_int32, "32-bit codes need 32-bit arithmetic", "use int64"),
        ),
        note="Ulps are fair at every magnitude; a fixed tolerance is too strict for large numbers and too lax for small ones.",
    ),
]
