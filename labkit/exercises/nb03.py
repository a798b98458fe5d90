"""Exercises of notebook 03: staying inside a format's range, and summing beyond its precision."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.exercises.core import Exercise, Wrong, expect
from labkit.numbers import FORMATS

# --- 03-stall -------------------------------------------------------------------------------------------------------


def stalls_at(fraction_bits: int) -> int:
    """The whole number at which counting by 1 stops in a format with this many fraction bits (ties to even)."""
    return 2 ** (fraction_bits + 1)


def _check_stall(answer: Callable[[int], int]) -> None:
    for name, bits in (("fp16", 10), ("bf16", 7), ("fp32", 23)):
        want, got = 2 ** (bits + 1), answer(bits)
        expect(got != want // 2, f"at {got} the gap in {name} is 1, so {got} + 1 is still a number of the format")
        expect(got != want - 1, f"{got} + 1 is {want}, which {name} has; counting stops one later")
        expect(got != want * 2, f"before {got} the gap in {name} is already 2: half a gap is a tie, and ties go to even")
        expect(got == want, f"in {name} ({bits} fraction bits) counting stops at {want}, your function gave {got!r}")


def _at_the_hidden_bit(fraction_bits: int) -> int:
    return 2**fraction_bits


def _one_early(fraction_bits: int) -> int:
    return 2 ** (fraction_bits + 1) - 1


def _away_from_even(fraction_bits: int) -> int:
    return 2 ** (fraction_bits + 2)


# --- 03-softmax -----------------------------------------------------------------------------------------------------


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, in the dtype of `x` throughout, finite for every finite `x`."""
    shifted = (x - x.max(dim=-1, keepdim=True).values).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


def _check_softmax(answer: Callable[[Tensor], Tensor]) -> None:
    easy = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]], dtype=torch.float16)
    got = answer(easy)
    expect(got.dtype == torch.float16, f"the result must stay float16, your function gave {got.dtype}")
    sums = got.float().sum(-1)
    expect(bool(torch.allclose(sums, torch.ones(2), atol=0.01)), f"each row must sum to 1, yours sum to {sums.tolist()}")
    large = torch.tensor([[12.0, 11.0, 0.0]], dtype=torch.float16)
    got = answer(large)
    expect(bool(got.isfinite().all()), f"exp(12) is above 65504: for [12, 11, 0] your function gave {got.tolist()}")
    rows = torch.tensor([[20.0, 19.0], [-60.0, -61.0]], dtype=torch.float16)
    got = answer(rows)
    expect(bool(got.isfinite().all()), f"a row far below the largest of all still needs its own shift; you gave {got.tolist()}")
    want = torch.softmax(rows.double(), -1)
    error = (got.double() - want).abs().max().item()
    expect(error < 2e-3, f"for {rows.tolist()} your result is off by {error:.3g}")


def _plain_softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(dim=-1, keepdim=True)


def _global_shift(x: Tensor) -> Tensor:
    shifted = (x - x.max()).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


def _in_fp32(x: Tensor) -> Tensor:
    return torch.softmax(x.float(), dim=-1)


def _all_summed(x: Tensor) -> Tensor:
    shifted = (x - x.max(dim=-1, keepdim=True).values).exp()
    return shifted / shifted.sum()


# --- 03-mask --------------------------------------------------------------------------------------------------------


def masked_scores(scores: Tensor, hidden: Tensor) -> Tensor:
    """`scores` with the most negative finite number of their own dtype wherever the boolean `hidden` is true."""
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)


def _check_mask(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    hidden = torch.tensor([[False, True], [True, True]])
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        scores = torch.tensor([[1.0, 2.0], [-7.0, 4.0]], dtype=dtype)
        got = answer(scores.clone(), hidden)
        expect(got.dtype == dtype, f"scores of {dtype} must keep their dtype, yours are {got.dtype}")
        expect(bool(got[~hidden].eq(scores[~hidden]).all()), "the scores that are not hidden must stay as they are")
        expect(
            bool(got.isfinite().all()),
            f"in {dtype} your mask is infinite, so a row with everything hidden becomes NaN: {got.softmax(-1)[1].tolist()}",
        )
        leaked = got.softmax(-1)[0, 1].item()
        expect(leaked == 0, f"in {dtype} a hidden position still gets weight {leaked:.3g}: the mask is not low enough")
    far = torch.tensor([[-60000.0, 0.0]], dtype=torch.float16)
    got = answer(far, torch.tensor([[False, True]]))
    leaked = got.softmax(-1)[0, 1].item()
    expect(
        leaked == 0,
        f"beside a score of -60000 a hidden one gets {leaked:.3g}: the mask must depend on the dtype",
    )


def _minus_a_billion(scores: Tensor, hidden: Tensor) -> Tensor:
    return torch.where(hidden, torch.tensor(-1e9).to(scores.dtype), scores)


def _minus_infinity(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -math.inf)


def _ten_thousand(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -1e4)


def _zeroed(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, 0.0)


# --- 03-kahan -------------------------------------------------------------------------------------------------------


def kahan_sum(values: Tensor) -> Tensor:
    """The sum of a 1-d tensor, added one by one in its own dtype, with Kahan's correction."""
    total = correction = torch.zeros((), dtype=values.dtype)
    for value in values:
        term = value - correction
        new = total + term
        correction = (new - total) - term
        total = new
    return total


def _check_kahan(answer: Callable[[Tensor], Tensor]) -> None:
    got = answer(torch.ones(500, dtype=torch.bfloat16))
    expect(getattr(got, "dtype", None) == torch.bfloat16, f"work in the dtype of the values; your result is {got!r}")
    expect(got.item() != 256, "your sum of 500 ones stalls at 256: what was lost in each addition must come back in the next")
    expect(abs(got.item() - 500) <= 2, f"500 ones sum to 500 (the gap in bf16 there is 2), your function gave {got.item():g}")
    tenths = torch.full((1000,), 0.1, dtype=torch.float16)
    want, got = tenths.double().sum().item(), answer(tenths).item()
    expect(abs(got - want) <= 0.0625, f"1000 times fp16's 0.1 is {want:.4f}, your function gave {got:.4f}")


def _naive_sum(values: Tensor) -> Tensor:
    total = torch.zeros((), dtype=values.dtype)
    for value in values:
        total = total + value
    return total


def _wrong_sign(values: Tensor) -> Tensor:
    total = correction = torch.zeros((), dtype=values.dtype)
    for value in values:
        term = value + correction
        new = total + term
        correction = (new - total) - term
        total = new
    return total


def _wide_sum(values: Tensor) -> Tensor:
    return values.double().sum()


# --- 03-scale -------------------------------------------------------------------------------------------------------


def largest_scale(gradients: Tensor) -> int:
    """The largest k for which every finite gradient times 2^k is at most 65504 in size."""
    largest = gradients.abs().max().item()
    k = math.floor(math.log2(65504 / largest))
    # log2 may round across a whole number: hold the candidate to the condition itself.
    while largest * 2.0**k > 65504:
        k -= 1
    while largest * 2.0 ** (k + 1) <= 65504:
        k += 1
    return k


def _check_scale(answer: Callable[[Tensor], int]) -> None:
    top = FORMATS["fp16"].max
    for gradients in ([1e-3, -2e-5], [-0.5, 0.1], [1.0, 65504.0], [2.0**-24, 0.0], [-65504 / 2**7, 1e-8]):
        tensor = torch.tensor(gradients, dtype=torch.float64)
        got, largest = answer(tensor), max(map(abs, gradients))
        expect(isinstance(got, int), f"k is a whole number, your function gave {got!r}")
        expect(largest * 2.0**got <= top, f"2^{got} takes the largest of {gradients} to {largest * 2.0**got:.6g}, above 65504")
        expect(largest * 2.0 ** (got + 1) > top, f"for {gradients} 2^{got + 1} would still fit: the scale may be larger")


def _ignores_sign(gradients: Tensor) -> int:
    return math.floor(math.log2(65504 / gradients.max().item()))


def _rounds_up(gradients: Tensor) -> int:
    return math.ceil(math.log2(65504 / gradients.abs().max().item()))


def _always_sixteen(gradients: Tensor) -> int:
    return 16


def _by_the_mean(gradients: Tensor) -> int:
    return math.floor(math.log2(65504 / gradients.abs().mean().item()))


EXERCISES = [
    Exercise(
        id="03-stall",
        solution=stalls_at,
        check=_check_stall,
        hints=(
            "How far apart are neighbours at 2^k in a format with p fraction bits? At which k is that more than 1?",
            "At 2^(p+1) the gap is 2, so adding 1 lands on a tie. Which of the two neighbours is even?",
            "The tie goes to the number itself, whose fraction is zero: counting stops at `2 ** (fraction_bits + 1)`.",
        ),
        wrong=(
            Wrong(_at_the_hidden_bit, "stops where the gap is 1", "the gap in fp16 is 1"),
            Wrong(_one_early, "the last step is already lost", "counting stops one later"),
            Wrong(_away_from_even, "a tie rounds up", "ties go to even"),
        ),
        note="2048 in fp16, 256 in bf16, 16,777,216 in fp32: a counter, or a running mean, must not live in 16 bits.",
    ),
    Exercise(
        id="03-softmax",
        solution=softmax,
        check=_check_softmax,
        hints=(
            "Softmax does not change when the same number is taken from every score of a row.",
            "Take the row's own maximum away first: then the largest exponential is exp(0) = 1.",
            "`x - x.max(dim=-1, keepdim=True).values`, then `exp`, then divide by the sum over `dim=-1`, `keepdim=True`.",
        ),
        wrong=(
            Wrong(_plain_softmax, "the formula as printed is safe", "exp(12) is above 65504"),
            Wrong(_global_shift, "one shift serves all rows", "still needs its own shift"),
            Wrong(_in_fp32, "a wider result is as good", "must stay float16"),
            Wrong(_all_summed, "the sum goes over everything", "each row must sum to 1"),
        ),
        note="The shift costs nothing and moves every exponential into [0, 1]. Every library does it.",
    ),
    Exercise(
        id="03-mask",
        solution=masked_scores,
        check=_check_mask,
        hints=(
            "The mask must be finite in the scores' dtype, and lower than any score.",
            "`torch.finfo(dtype).min` is the most negative finite number of a dtype.",
            "`scores.masked_fill(hidden, torch.finfo(scores.dtype).min)`; do not add it, since a sum could overflow.",
        ),
        wrong=(
            Wrong(_minus_a_billion, "-1e9 is a number in every format", "your mask is infinite"),
            Wrong(_minus_infinity, "minus infinity is the cleanest mask", "becomes NaN"),
            Wrong(_ten_thousand, "a constant that fits fp16 serves", "must depend on the dtype"),
            Wrong(_zeroed, "zero hides a score", "still gets weight"),
        ),
        note="A finite mask makes a fully hidden row uniform instead of NaN; ignore that row either way.",
    ),
    Exercise(
        id="03-kahan",
        solution=kahan_sum,
        check=_check_kahan,
        hints=(
            "After `new = total + term`, how much of `term` really arrived? Both numbers you need are at hand.",
            "`(new - total) - term` is what arrived too much; take it from the next value before adding.",
            "Each round: `term = value - correction; new = total + term; correction = (new - total) - term; total = new`.",
        ),
        wrong=(
            Wrong(_naive_sum, "adding in order is summing", "stalls at 256"),
            Wrong(_wrong_sign, "the correction is added", "must come back in the next"),
            Wrong(_wide_sum, "a wider accumulator is Kahan's trick", "work in the dtype"),
        ),
        note="Two numbers of the narrow type do the work of one twice as wide. Notebook 05 gives each weight a companion.",
    ),
    Exercise(
        id="03-scale",
        solution=largest_scale,
        check=_check_scale,
        hints=(
            "Only the gradient that is largest in size can overflow first.",
            "You look for the largest whole k with `largest * 2**k <= 65504`; `math.log2` and `math.floor` give it.",
            "`math.floor(math.log2(65504 / gradients.abs().max().item()))`, and check the neighbours, since log2 rounds.",
        ),
        wrong=(
            Wrong(_ignores_sign, "negative gradients cannot overflow", "above 65504"),
            Wrong(_rounds_up, "nearly fitting is fitting", "above 65504"),
            Wrong(_always_sixteen, "65,536 is the right scale for everything", "would still fit"),
            Wrong(_by_the_mean, "the average gradient decides", "above 65504"),
        ),
        note="A dynamic scaler finds this k by trying: up after a long calm, down at the first infinity.",
    ),
]
