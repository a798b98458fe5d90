"""Exercises of notebook 04: what a training step holds, and when it holds most."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from math import ceil, floor

import torch
from torch import nn
from torch.optim import Optimizer

from labkit.exercises.core import Exercise, Wrong, expect


def fixed_bytes(parameters: int, width: int = 4, moments: int = 2) -> int:
    """Bytes that training holds whatever the batch: weights, gradients and moments, each number `width` bytes wide."""
    return parameters * width * (1 + 1 + moments)


def _check_fixed(answer: Callable[..., int]) -> None:
    for n, width, moments in [(1000, 4, 1), (1000, 4, 0), (1_000_000, 4, 2), (1_000_000, 2, 2), (179_450_112, 4, 2)]:
        want, got = fixed_bytes(n, width, moments), answer(n, width, moments)
        asked = f"{n:,} parameters of {width} bytes with {moments} moments"
        expect(got != n * width, f"{asked}: {got:,} bytes are the weights alone; gradients have the same size")
        expect(got != n * width * (1 + moments), f"{asked}: {got:,} bytes leave out the gradients, one number a weight")
        expect(moments == 1 or got != 3 * n * width, f"{asked}: {got:,} bytes count one moment whatever `moments` says")
        expect(width == 4 or got != 2 * want, f"{asked}: {got:,} bytes take every number for 4 bytes wide")
        expect(got == want, f"{asked} take {want:,} bytes, your function gave {got!r}")


def _weights_alone(parameters: int, width: int = 4, moments: int = 2) -> int:
    return parameters * width


def _no_gradients(parameters: int, width: int = 4, moments: int = 2) -> int:
    return parameters * width * (1 + moments)


def _one_moment(parameters: int, width: int = 4, moments: int = 2) -> int:
    return parameters * width * 3


def _always_sixteen(parameters: int, width: int = 4, moments: int = 2) -> int:
    return parameters * 4 * (2 + moments)


def held_bytes(model: "nn.Module", optimizer: "Optimizer") -> dict[str, int]:
    """Bytes held right now as {"parameters": …, "gradients": …, "optimizer": …}, counted from the tensors themselves."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    state = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
    return {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(g.nbytes for g in gradients),
        "optimizer": sum(s.nbytes for s in state),
    }


def _situations() -> Iterator[tuple[str, nn.Module, Optimizer]]:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters())
        name = str(dtype).removeprefix("torch.")
        yield f"a new {name} model", model, optimizer
        model[0](torch.ones(2, 6, dtype=dtype)).sum().backward()
        yield f"a {name} model after a backward that reached its first layer", model, optimizer
        optimizer.step()
        yield f"a {name} model after its first step", model, optimizer


def _check_held(answer: Callable[[nn.Module, Optimizer], dict[str, int]]) -> None:
    for situation, model, optimizer in _situations():
        want, got = held_bytes(model, optimizer), answer(model, optimizer)
        expect(isinstance(got, dict) and set(got) == set(want), f"return a dict with the keys {list(want)}, not {got!r}")
        numbers = sum(p.numel() for p in model.parameters())
        expect(
            got["parameters"] != numbers != want["parameters"],
            f"{situation}: {numbers} is how many numbers there are; ask for bytes",
        )
        expect(
            got["parameters"] == want["parameters"],
            f"{situation} has {want['parameters']} bytes of parameters, your function gave {got['parameters']!r}",
        )
        expect(
            got["gradients"] == want["gradients"],
            f"{situation} has {want['gradients']} bytes of gradients, since `grad` is None where backward has not been; "
            f"your function gave {got['gradients']!r}",
        )
        expect(
            got["optimizer"] == want["optimizer"],
            f"{situation} has {want['optimizer']} bytes of optimizer state (moments and step counters, made by the first "
            f"`step()` for what has a gradient); your function gave {got['optimizer']!r}",
        )


def _counts_numbers(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    return {name: size // next(model.parameters()).element_size() for name, size in held_bytes(model, optimizer).items()}


def _gradients_always_there(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    held = held_bytes(model, optimizer)
    return held | {"gradients": held["parameters"]}


def _state_always_there(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    held = held_bytes(model, optimizer)
    return held | {"optimizer": 2 * held["parameters"]}


def _all_fp32(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    return held_bytes(model, optimizer) | {"parameters": sum(4 * p.numel() for p in model.parameters())}


def peak(changes: list[int]) -> int:
    """The most bytes alive at once; `changes` are allocations (positive) and frees (negative) in the order they happened."""
    from itertools import accumulate

    return max(accumulate(changes), default=0)


def _check_peak(answer: Callable[[list[int]], int]) -> None:
    for changes in ([100, 50, -100, 30], [10, -10] * 4, [5, 5, -10, 8], [7], []):
        want, got = peak(changes), answer(changes)
        if changes:
            allocated = sum(change for change in changes if change > 0)
            expect(
                got == want or got != sum(changes), f"{changes}: {got} bytes are what is left at the end; the peak came before"
            )
            expect(got == want or got != allocated, f"{changes}: {got} bytes were allocated in all, but never alive at once")
            expect(
                got == want or got != max(changes), f"{changes}: {got} bytes is the largest single tensor; others were alive"
            )
        expect(got == want, f"{changes or 'no changes at all'}: the peak is {want} bytes, your function gave {got!r}")


def _left_at_the_end(changes: list[int]) -> int:
    return sum(changes)


def _all_allocations(changes: list[int]) -> int:
    return sum(change for change in changes if change > 0)


def _largest_tensor(changes: list[int]) -> int:
    return max(changes, default=0)


def _no_steps(changes: list[int]) -> int:
    return max(accumulate(changes))


def logits_bytes(batch: int, sequence: int, vocabulary: int, copies: int = 3, width: int = 4) -> int:
    """Bytes in `copies` tensors of the logits' shape: at the peak the log-probabilities and two gradients are alive."""
    return batch * sequence * vocabulary * copies * width


def _check_logits(answer: Callable[..., int]) -> None:
    for batch, sequence, vocabulary in [(8, 128, 16_384), (1, 512, 50_000), (4, 1024, 128_256)]:
        want, got = logits_bytes(batch, sequence, vocabulary), answer(batch, sequence, vocabulary)
        asked = f"batch {batch}, {sequence} tokens, vocabulary {vocabulary:,}"
        expect(3 * got != want, f"{asked}: {got:,} bytes are one such tensor; at the peak three are alive")
        expect(4 * got != want, f"{asked}: {got:,} is how many numbers there are; each has `width` bytes")
        expect(got * sequence != want, f"{asked}: {got:,} bytes are for one position; the loss is taken at every token")
        expect(got == want, f"{asked} take {want:,} bytes in three copies, your function gave {got!r}")
    want, got = logits_bytes(2, 64, 1000, copies=1, width=2), answer(2, 64, 1000, copies=1, width=2)
    expect(
        got == want, f"one bf16 copy for batch 2, 64 tokens, vocabulary 1,000 takes {want:,} bytes, your function gave {got!r}"
    )


def _one_copy(batch: int, sequence: int, vocabulary: int, copies: int = 3, width: int = 4) -> int:
    return batch * sequence * vocabulary * width


def _numbers_not_bytes(batch: int, sequence: int, vocabulary: int, copies: int = 3, width: int = 4) -> int:
    return batch * sequence * vocabulary * copies


def _last_token_only(batch: int, sequence: int, vocabulary: int, copies: int = 3, width: int = 4) -> int:
    return batch * vocabulary * copies * width


def _always_three_fp32(batch: int, sequence: int, vocabulary: int, copies: int = 3, width: int = 4) -> int:
    return batch * sequence * vocabulary * 12


def largest_batch(peak_at: "Callable[[int], int]", limit: int) -> int:
    """The largest batch whose peak is at most `limit` bytes, from two calls of `peak_at(batch)`, which lies on a line."""
    small, large = 4, 8
    slope = (peak_at(large) - peak_at(small)) / (large - small)
    fixed = peak_at(small) - slope * small
    return max(0, int((limit - fixed) // slope))


#: (bytes whatever the batch, bytes a sequence, limit): exact multiples, near misses and a model that does not fit at all.
_LINES = [(1000, 100, 2000), (1000, 100, 1999), (2_871_201_792, 800_000_000, 12_000_000_000), (500, 50, 400), (0, 10, 95)]


def _check_batch(answer: Callable[[Callable[[int], int], int], int]) -> None:
    for fixed, slope, limit in _LINES:
        calls: list[int] = []

        def peak_at(batch: int, fixed: int = fixed, slope: int = slope, calls: list[int] = calls) -> int:
            calls.append(batch)
            return fixed + slope * batch

        got, want = answer(peak_at, limit), max(0, (limit - fixed) // slope)
        line = f"with {fixed:,} bytes fixed, {slope:,} a sequence and a limit of {limit:,}"
        over, at_one = fixed + slope * want + slope, fixed + slope
        expect(len(set(calls)) <= 3, f"{line} your function measured {len(set(calls))} batches; a line needs two")
        expect(
            got == want or got != limit // at_one,
            f"{line} batch {got} takes memory for proportional to the batch; part of it is fixed",
        )
        expect(got == want or got != limit // slope, f"{line} batch {got} forgets the fixed part")
        expect(got == want or got != want + 1, f"{line} batch {got} needs {over:,} bytes, which is over the limit: round down")
        expect(got == want or got >= 0, f"{line} not even the model fits, so the answer is 0, not {got}")
        expect(got == want, f"{line} the largest batch is {want}, your function gave {got!r}")


def _proportional(peak_at: Callable[[int], int], limit: int) -> int:
    return limit // peak_at(1)


def _slope_alone(peak_at: Callable[[int], int], limit: int) -> int:
    return limit // (peak_at(2) - peak_at(1))


def _rounds_up(peak_at: Callable[[int], int], limit: int) -> int:
    slope = peak_at(2) - peak_at(1)
    return max(0, ceil((limit - (peak_at(1) - slope)) / slope))


def _goes_negative(peak_at: Callable[[int], int], limit: int) -> int:
    slope = peak_at(2) - peak_at(1)
    return floor((limit - (peak_at(1) - slope)) / slope)


def _tries_them_all(peak_at: Callable[[int], int], limit: int) -> int:
    batch = 0
    while peak_at(batch + 1) <= limit:
        batch += 1
    return batch


EXERCISES: list[Exercise] = [
    Exercise(
        id="04-fixed",
        solution=fixed_bytes,
        check=_check_fixed,
        hints=(
            "List what exists once for every weight: the weight itself, and what else?",
            "A gradient has the shape and the width of its weight, and so has each moment of the optimizer.",
            "`parameters * width` is one set; there are `2 + moments` of them.",
        ),
        wrong=(
            Wrong(_weights_alone, "a model is its weights", "the weights alone"),
            Wrong(_no_gradients, "gradients are gone when memory counts", "leave out the gradients"),
            Wrong(_one_moment, "the optimizer keeps one number a weight", "count one moment"),
            Wrong(_always_sixteen, "it is always 16 bytes", "4 bytes wide"),
        ),
        note="Sixteen bytes a parameter is the rule of thumb for AdamW in fp32. What is left is up to the batch.",
    ),
    Exercise(
        id="04-held",
        solution=held_bytes,
        check=_check_held,
        hints=(
            "Every tensor has `.nbytes`. Start with `sum(p.nbytes for p in model.parameters())`.",
            "`p.grad` is None until backward reaches p. `optimizer.state` is a dict of dicts, empty before a `step()`.",
            "Loop over `optimizer.state.values()`, then over each one's `.values()`; keep what `torch.is_tensor` accepts.",
        ),
        wrong=(
            Wrong(_counts_numbers, "numbers and bytes are the same", "ask for bytes"),
            Wrong(_all_fp32, "every number has four bytes", "bytes of parameters"),
            Wrong(_gradients_always_there, "gradients exist from the start", "`grad` is None"),
            Wrong(_state_always_there, "optimizer state exists from the start", "made by the first `step()`"),
        ),
        note="Count what is there, not what the formula says: a gradient that is None and a state not yet made cost nothing.",
    ),
    Exercise(
        id="04-peak",
        solution=peak,
        check=_check_peak,
        hints=(
            "Write down by hand how many bytes are alive after each change of `[100, 50, -100, 30]`.",
            "`itertools.accumulate` gives the running sum.",
            "`max(accumulate(changes), default=0)`; the default is for a program that allocates nothing.",
        ),
        wrong=(
            Wrong(_left_at_the_end, "the memory at the end is the memory needed", "left at the end"),
            Wrong(_all_allocations, "allocations add up", "never alive at once"),
            Wrong(_largest_tensor, "the largest tensor decides", "largest single tensor"),
            Wrong(_no_steps, "there is always at least one change", "max() "),
        ),
        note="A memory meter does just this. The art is in getting the list of changes and in saying what each is for.",
    ),
    Exercise(
        id="04-logits",
        solution=logits_bytes,
        check=_check_logits,
        hints=(
            "The logits have one number for each word of the vocabulary, at each token of each sequence.",
            "Multiply the three sides, then by the width of a number, then by how many such tensors are alive.",
            "`batch * sequence * vocabulary * copies * width`.",
        ),
        wrong=(
            Wrong(_one_copy, "the logits exist once", "three are alive"),
            Wrong(_numbers_not_bytes, "a number is a byte", "each has `width` bytes"),
            Wrong(_last_token_only, "only the last token is predicted", "at every token"),
            Wrong(_always_three_fp32, "copies and width never change", "one bf16 copy"),
        ),
        note="No layer holds anything as wide as the vocabulary, which is why the peak sits where forward turns to backward.",
    ),
    Exercise(
        id="04-batch",
        solution=largest_batch,
        check=_check_batch,
        hints=(
            "Two points fix a line. What is its slope, and what is left at batch 0?",
            "`slope = (peak_at(8) - peak_at(4)) / 4`, `fixed = peak_at(4) - 4 * slope`; solve `fixed + slope * b <= limit`.",
            "Floor the quotient, so that the limit holds, and never return less than 0.",
        ),
        wrong=(
            Wrong(_proportional, "memory is proportional to the batch", "proportional to the batch"),
            Wrong(_slope_alone, "only the growth counts", "forgets the fixed part"),
            Wrong(_rounds_up, "almost fits is fits", "round down"),
            Wrong(_goes_negative, "a quotient is an answer", "not even the model fits"),
            Wrong(_tries_them_all, "every batch must be tried", "a line needs two"),
        ),
        note="Two measurements answer for every batch as long as the line holds. Notebook 09 says when it does not.",
    ),
]
