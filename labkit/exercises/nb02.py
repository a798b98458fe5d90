"""Exercises of notebook 02: choosing, making and scaling formats."""

import math
from collections.abc import Callable, Iterable

import torch

from labkit.exercises.core import Exercise, Wrong, expect
from labkit.numbers import FORMATS, FloatFormat
from labkit.numbers.tensors import quantize

# --- 02-bf16 --------------------------------------------------------------------------------------------------------


def bf16_codes(codes: torch.Tensor) -> torch.Tensor:
    """The bf16 codes (int32 tensor, 0 to 0xFFFF) of fp32 codes given as an int32 tensor (the bits of fp32 numbers)."""
    wide = codes.long() & 0xFFFF_FFFF  # unsigned, with room for the carry
    rounded = wide + 0x7FFF + (wide >> 16 & 1) >> 16
    nan = (wide & 0x7FFF_FFFF) > 0x7F80_0000
    return torch.where(nan, 0x7FC0, rounded).int()


def _codes_of(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).view(torch.int32)


def _check_bf16(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    eps = 2.0**-7
    cases = [
        (1.0, "its lower half is zero, so cutting is enough"),
        (1 + 0.75 * eps, "what is cut is more than half of an ulp, so the number goes up"),
        (1 + 0.5 * eps, "a tie goes to the even code, here down"),
        (1 + 1.5 * eps, "a tie goes to the even code, here up"),
        (-(1 + 0.75 * eps), "negative numbers round by magnitude; keep the result within 0 to 0xFFFF"),
        (3.4e38, "rounding up from the largest number carries into infinity"),
        (math.inf, "infinity must stay infinity"),
        (1e-40, "subnormals round like all others"),
    ]
    for number, why in cases:
        want = FORMATS["bf16"].encode(float(torch.tensor(number)))
        got = answer(_codes_of([number])).tolist()
        expect(got == [want], f"{number!r} is 0x{want:04X} in bf16, your function gave {_hexes(got)}: {why}")
    for code in (0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1):
        got = answer(torch.tensor([code], dtype=torch.int32)).tolist()
        nan = 0x7F80 < (got[0] & 0x7FFF) <= 0x7FFF and 0 <= got[0] <= 0xFFFF
        shown = f"0x{code & 0xFFFFFFFF:08X}"
        expect(
            nan,
            f"the fp32 code {shown} is NaN and must stay one, your function gave {_hexes(got)}: rounding must not touch NaN",
        )
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(2)) * 1000
    want_all = x.to(torch.bfloat16).view(torch.int16).int() & 0xFFFF
    differing = int((answer(x.view(torch.int32)) != want_all).sum())
    expect(differing == 0, f"{differing} of 10,000 random numbers differ from torch's conversion")


def _hexes(codes: list[int]) -> str:
    return ", ".join(f"0x{code:04X}" if code >= 0 else str(code) for code in codes)


def _cut(codes: torch.Tensor) -> torch.Tensor:
    return codes >> 16 & 0xFFFF


def _half_up(codes: torch.Tensor) -> torch.Tensor:
    return ((codes.long() & 0xFFFF_FFFF) + 0x8000 >> 16).int()


def _nan_rounded(codes: torch.Tensor) -> torch.Tensor:
    wide = codes.long() & 0xFFFF_FFFF
    return (wide + 0x7FFF + (wide >> 16 & 1) >> 16 & 0xFFFF).int()


def _sign_extended(codes: torch.Tensor) -> torch.Tensor:
    return codes + 0x7FFF + (codes >> 16 & 1) >> 16


# --- 02-whole -------------------------------------------------------------------------------------------------------


def last_exact_integer(fraction_bits: int, largest: float) -> int:
    """The largest n such that 0, 1, ..., n are all exact in a format with these fraction bits and this largest number."""
    return int(min(2 ** (fraction_bits + 1), largest))


def _check_whole(answer: Callable[[int, float], int]) -> None:
    for name in ("fp16", "bf16", "fp32", "fp64", "fp8_e4m3fn", "fp4_e2m1", "fp6_e2m3"):
        fmt = FORMATS[name]
        want, got = last_exact_integer(fmt.fraction_bits, fmt.max), answer(fmt.fraction_bits, fmt.max)
        if fmt.max < 2 ** (fmt.fraction_bits + 1):
            why = f"the largest number of {name} is {fmt.max}, and it comes first"
        else:
            why = f"with the hidden bit a significand has {fmt.fraction_bits + 1} bits, and a power of two needs only one"
        expect(got == want, f"in {name} all whole numbers up to {want} are exact, your function gave {got!r}: {why}")
        expect(isinstance(got, int), f"a whole number is an int, your function gave {got!r}")


def _no_hidden_bit(fraction_bits: int, largest: float) -> int:
    return int(min(2**fraction_bits, largest))


def _all_ones(fraction_bits: int, largest: float) -> int:
    return int(min(2 ** (fraction_bits + 1) - 1, largest))


def _no_limit(fraction_bits: int, largest: float) -> int:
    return 2 ** (fraction_bits + 1)


def _up_to_largest(fraction_bits: int, largest: float) -> int:
    return int(largest)


# --- 02-quantize ----------------------------------------------------------------------------------------------------


def quantize_fp4(x: torch.Tensor) -> torch.Tensor:
    """The float32 tensor x, finite, with every element rounded to fp4 E2M1: nearest, ties to the even code, saturating."""
    magnitude = x.abs().clamp(max=6)
    ulp = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign((magnitude / ulp).round() * ulp, x)


def _check_quantize(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cases = [
        ([0.5, 1.0, 3.0, 6.0], "these are fp4 numbers already"),
        ([0.9, 2.2, 3.6, 4.9], "go to the nearest number, up or down"),
        ([-0.9, -2.2, -3.6], "negatives round like positives, with their sign"),
        ([7.0, 100.0, -1e9], "beyond 6 there is nothing: saturate"),
        (
            [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0],
            "a tie goes to the even code; 0, 1, 2, 4 have even codes",
        ),
        ([0.0, -0.0, 1e-30], "what is nearest to zero is zero"),
    ]
    for numbers, why in cases:
        x = torch.tensor(numbers)
        want, got = quantize(x, "fp4_e2m1"), answer(x.clone())
        expect(isinstance(got, torch.Tensor) and got.shape == x.shape, f"return a tensor of shape {tuple(x.shape)}, not {got}")
        if not torch.equal(got, want):
            expect(False, f"{numbers} become {want.tolist()}, your function gave {got.tolist()}: {why}")
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(4)) * 3
    differing = int((answer(x.clone()) != quantize(x, "fp4_e2m1")).sum())
    expect(differing == 0, f"{differing} of 10,000 random numbers go elsewhere")


_FP4 = torch.tensor(sorted(set(FORMATS["fp4_e2m1"].values())))


def _nearest_first(x: torch.Tensor) -> torch.Tensor:
    return _FP4[(x.unsqueeze(-1) - _FP4).abs().argmin(-1)]


def _one_ulp_for_all(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).round().clamp(-12, 12) / 2


def _truncating(x: torch.Tensor) -> torch.Tensor:
    magnitude = x.abs().clamp(max=6)
    ulp = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign((magnitude / ulp).floor() * ulp, x)


def _not_saturating(x: torch.Tensor) -> torch.Tensor:
    magnitude = x.abs()
    ulp = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign((magnitude / ulp).round() * ulp, x)


def _sign_lost(x: torch.Tensor) -> torch.Tensor:
    return quantize_fp4(x.abs())


# --- 02-scale -------------------------------------------------------------------------------------------------------


def round_up_scale(block: torch.Tensor, largest: float) -> float:
    """The least power of two s such that every |element| of `block` is at most s * largest; a float."""
    mantissa, exponent = math.frexp(block.abs().max().item() / largest)  # mantissa * 2^exponent, mantissa from 0.5 up
    return 2.0 ** (exponent - 1 if mantissa == 0.5 else exponent)


def _check_scale(answer: Callable[[torch.Tensor, float], float]) -> None:
    cases = [
        ([1.0, -6.0, 2.0], 6.0, 1.0, "6 is exactly 1 times 6, and a scale of 2 would waste a bit"),
        ([1.0, 6.5, 0.0], 6.0, 2.0, "with a scale of 1 the 6.5 would saturate at 6"),
        ([0.01, -0.02], 6.0, 2.0**-8, "small blocks need scales below 1"),
        ([-1000.0, 3.0], 6.0, 256.0, "the largest magnitude counts, negative or not"),
        ([1000.0, 3.0], 448.0, 4.0, "2 times 448 is 896, not enough for 1000"),
        ([448.0], 448.0, 1.0, "448 is exactly 1 times 448"),
    ]
    for numbers, largest, want, why in cases:
        got = answer(torch.tensor(numbers), largest)
        got = got.item() if isinstance(got, torch.Tensor) else got
        power = isinstance(got, int | float) and got > 0 and math.frexp(got)[0] == 0.5
        expect(power, f"a scale is a power of two, your function gave {got!r} for {numbers}")
        expect(
            got == want,
            f"the scale of {numbers} for a largest of {largest:g} is {want!r}, your function gave {got!r}: {why}",
        )


def _floor_rule(block: torch.Tensor, largest: float) -> float:
    return 2.0 ** (math.floor(math.log2(block.abs().max().item())) - math.floor(math.log2(largest)))


def _always_next(block: torch.Tensor, largest: float) -> float:
    return 2.0 ** math.frexp(block.abs().max().item() / largest)[1]


def _signed_maximum(block: torch.Tensor, largest: float) -> float:
    return round_up_scale(block.max().clamp(min=1e-3), largest)


def _plain_ratio(block: torch.Tensor, largest: float) -> float:
    return block.abs().max().item() / largest


# --- 02-choose ------------------------------------------------------------------------------------------------------


def formats_that_hold(formats: list, large: float, small: float, digits: int) -> list[str]:
    """Names of those `formats` (FloatFormat objects) that hold ±large, hold small as a normal number, and have digits.

    digits: every decimal number of that many digits must survive: fraction_bits * log10(2) >= digits.
    """
    return [
        fmt.name
        for fmt in formats
        if fmt.max >= large and fmt.smallest_normal <= small and fmt.fraction_bits * math.log10(2) >= digits
    ]


def _check_choose(answer: Callable[..., list[str]]) -> None:
    formats = [fmt for fmt in FORMATS.values() if fmt.signed]
    cases = [
        (1e30, 1e-30, 0, "range alone: the formats with 8 exponent bits or more"),
        (65504.0, 1e-3, 3, "fp16's largest number is held by fp16 itself"),
        (100.0, 1e-6, 3, "1e-6 is only a subnormal in fp16, with fewer digits than it promises"),
        (100.0, 0.1, 2, "digits come from the fraction bits alone"),
        (5.0, 1.0, 0, "even fp4 holds 1 to 6"),
        (1e300, 1e-300, 15, "only fp64 reaches so far"),
    ]
    for large, small, digits, why in cases:
        want, got = formats_that_hold(formats, large, small, digits), list(answer(formats, large, small, digits))
        extra, missing = sorted(set(got) - set(want)), sorted(set(want) - set(got))
        if extra or missing:
            parts = [f"{', '.join(extra)} must not be there"] if extra else []
            parts += [f"{', '.join(missing)} should be there"] if missing else []
            expect(False, f"large {large:g}, small {small:g}, digits {digits}: {' and '.join(parts)}; {why}")


def _subnormals_will_do(formats: Iterable[FloatFormat], large: float, small: float, digits: int) -> list[str]:
    held = [fmt for fmt in formats if fmt.max >= large and fmt.smallest_subnormal <= small]
    return [fmt.name for fmt in held if fmt.fraction_bits * math.log10(2) >= digits]


def _strictly(formats: Iterable[FloatFormat], large: float, small: float, digits: int) -> list[str]:
    held = [fmt for fmt in formats if fmt.max > large and fmt.smallest_normal <= small]
    return [fmt.name for fmt in held if fmt.fraction_bits * math.log10(2) >= digits]


def _digits_from_width(formats: Iterable[FloatFormat], large: float, small: float, digits: int) -> list[str]:
    held = [fmt for fmt in formats if fmt.max >= large and fmt.smallest_normal <= small]
    return [fmt.name for fmt in held if fmt.bits * math.log10(2) >= digits]


def _range_only(formats: Iterable[FloatFormat], large: float, small: float, digits: int) -> list[str]:
    return [fmt.name for fmt in formats if fmt.max >= large and fmt.smallest_normal <= small]


EXERCISES = [
    Exercise(
        id="02-bf16",
        solution=bf16_codes,
        check=_check_bf16,
        hints=(
            "The cell above has the trick: add 0x7FFF and the lowest bit that stays, then shift by 16.",
            "int32 is signed: work in int64 with `codes.long() & 0xFFFF_FFFF`, so that the sign bit is a bit like the others.",
            "A NaN's magnitude is above 0x7F80_0000. Use `torch.where` to give those 0x7FC0.",
        ),
        wrong=(
            Wrong(_cut, "converting is cutting", "more than half of an ulp"),
            Wrong(_half_up, "ties round up", "a tie goes to the even code"),
            Wrong(_nan_rounded, "NaN takes care of itself", "rounding must not touch NaN"),
            Wrong(_sign_extended, "shifting right brings in zeros", "keep the result within 0 to 0xFFFF"),
        ),
        note="One addition rounds every finite number and carries up to infinity. Only NaN needs a case of its own.",
    ),
    Exercise(
        id="02-whole",
        solution=last_exact_integer,
        check=_check_whole,
        hints=(
            "A significand has the fraction bits and the hidden bit. What is the largest whole number with that many bits?",
            "One more is a power of two, which needs a single bit: 2 ** (fraction_bits + 1) is exact, the next number is not.",
            "Take the smaller of that and `largest`, as an int: fp6 E2M3 ends at 7.5, long before 16.",
        ),
        wrong=(
            Wrong(_no_hidden_bit, "only the stored bits count", "with the hidden bit a significand has"),
            Wrong(_all_ones, "all ones is the end", "a power of two needs only one"),
            Wrong(_no_limit, "precision ends first, always", "it comes first"),
            Wrong(_up_to_largest, "what is in range is exact", "with the hidden bit"),
        ),
        note="2048 in fp16, 256 in bf16, 16 in E4M3: remember these when something counts in low precision.",
    ),
    Exercise(
        id="02-quantize",
        solution=quantize_fp4,
        check=_check_quantize,
        hints=(
            "The gap is 0.5 below 2, 1 from 2 to 4, and 2 from 4 to 6. Work with magnitudes and put the sign back at the end.",
            "Divide by the gap, `round()` (torch rounds halves to even), multiply by the gap.",
            "Clamp magnitudes to 6 first. `torch.where` picks the gap, `torch.copysign` restores the sign.",
        ),
        wrong=(
            Wrong(_nearest_first, "of two equally near, the first will do", "a tie goes to the even code"),
            Wrong(_one_ulp_for_all, "the gap is the same everywhere", "go to the nearest number"),
            Wrong(_truncating, "quantizing cuts off", "go to the nearest number"),
            Wrong(_not_saturating, "the format has no end", "saturate"),
            Wrong(_sign_lost, "magnitudes are enough", "with their sign"),
        ),
        note="Dividing by a power of two is exact, so `round` is the only rounding. `quantize` works this way.",
    ),
    Exercise(
        id="02-scale",
        solution=round_up_scale,
        check=_check_scale,
        hints=(
            "Only the largest magnitude of the block matters: `block.abs().max()`.",
            "You need the least power of two at or above magnitude / largest. `math.frexp` takes a number apart exactly.",
            "`frexp` gives mantissa * 2^exponent, the mantissa at least 0.5 and below 1; exactly 0.5 means a power of two.",
        ),
        wrong=(
            Wrong(_floor_rule, "floor of the logarithms is enough", "would saturate at 6"),
            Wrong(_always_next, "rounding up means the next power", "would waste a bit"),
            Wrong(_signed_maximum, "the maximum is the largest magnitude", "scale of [1.0, -6.0, 2.0]"),
            Wrong(_plain_ratio, "any scale will do", "a scale is a power of two"),
        ),
        note="The standard's floor rule lets the largest elements saturate; training has diverged for it (arXiv:2506.08027).",
    ),
    Exercise(
        id="02-choose",
        solution=formats_that_hold,
        check=_check_choose,
        hints=(
            "Three conditions, all of which must hold: `fmt.max`, `fmt.smallest_normal` and `fmt.fraction_bits`.",
            "Holding ±large means max >= large: the largest number itself is held.",
            "A list comprehension over `formats` with the three conditions joined by `and`, returning `fmt.name`.",
        ),
        wrong=(
            Wrong(_subnormals_will_do, "a subnormal is as good as a normal", "only a subnormal in fp16"),
            Wrong(_strictly, "the largest number is out of reach", "held by fp16 itself"),
            Wrong(_digits_from_width, "all bits make digits", "must not be there"),
            Wrong(_range_only, "what is in range is precise", "must not be there"),
        ),
        note="Ask for the range first: what does not fit is lost altogether, while lost digits are only noise.",
    ),
]
