"""Exercises of notebook 09: a layer's bytes, a batch from two measurements, the first change, the impossible estimate."""

from labkit.exercises.core import Answer, Exercise, Wrong, expect

MIB = 2**20


# ---- 09-layer -------------------------------------------------------------------------------------------------------


def layer_bytes(s: int, b: int, h: int, a: int, fused: bool) -> int:
    """Bytes that one fp16 layer keeps for backward: sequence s, batch b, hidden h, a heads, fused attention or not."""
    kept = 34 * s * b * h
    if not fused:
        kept += 5 * a * s * s * b
    return kept


def _check_layer(answer: Answer) -> None:
    one = answer(1, 1, 1, 0, True)
    expect(one != 68, "68 bytes a number is fp32; the layer runs in fp16, so its 16 large tensors take 2 bytes each")
    expect(one == 34, f"with s = b = h = 1 and fused attention a layer keeps 34 bytes, your function gave {one}")
    fused = answer(128, 2, 64, 4, True)
    expect(fused == 34 * 128 * 2 * 64, "fused attention never holds the s x s matrices: nothing is added to 34sbh")
    eager = answer(128, 2, 64, 4, False) - 34 * 128 * 2 * 64
    matrix = 4 * 128 * 128 * 2
    expect(eager != 6 * matrix, "a dropout mask is one byte an element: the s x s part is 2 + 1 + 2 bytes, not 6")
    expect(eager != 5 * 128 * 128 * 2, "every head has its own s x s matrix: multiply by a")
    expect(eager == 5 * matrix, f"eager attention adds 5as²b = {5 * matrix:,} bytes here, your function added {eager:,}")


def _wide_mask(s: int, b: int, h: int, a: int, fused: bool) -> int:
    return 34 * s * b * h + (0 if fused else 6 * a * s * s * b)


def _one_head(s: int, b: int, h: int, a: int, fused: bool) -> int:
    return 34 * s * b * h + (0 if fused else 5 * s * s * b)


def _always_eager(s: int, b: int, h: int, a: int, fused: bool) -> int:
    return 34 * s * b * h + 5 * a * s * s * b


def _fp32(s: int, b: int, h: int, a: int, fused: bool) -> int:
    return 2 * layer_bytes(s, b, h, a, fused)


# ---- 09-batch -------------------------------------------------------------------------------------------------------


def largest_batch(first: tuple[int, int], second: tuple[int, int], budget: int) -> int:
    """The largest batch within `budget` bytes, from two measurements (batch, peak bytes); 0 where not even 1 fits."""
    (b1, p1), (b2, p2) = first, second
    each = (p2 - p1) / (b2 - b1)
    fixed = p1 - each * b1
    return max(0, int((budget - fixed) // each))


def _check_batch(answer: Answer) -> None:
    fixed, each = 3000, 500
    pair = ((2, fixed + 2 * each), (6, fixed + 6 * each))
    found = answer(*pair, 8000)
    expect(found != 4, "4 takes all memory to grow with the batch; find the fixed part first, parameters and optimizer")
    expect(found == 10, f"3,000 fixed and 500 an example leave room for 10 examples in 8,000, your function gave {found}")
    found = answer(*pair, 8499)
    expect(found == 10, f"at 8,499 bytes the eleventh example lacks one byte: the answer is 10, your function gave {found}")
    expect(answer(*pair, 8500) == 11, "at 8,500 bytes the eleventh example fits exactly")
    expect(answer(pair[1], pair[0], 8000) == 10, "the two measurements may come in either order")
    expect(answer(*pair, 100) == 0, "a budget below the fixed part holds no example: the answer is 0, never below")


def _proportional(first: tuple[int, int], second: tuple[int, int], budget: int) -> int:
    return budget // (first[1] // first[0])


def _rounds(first: tuple[int, int], second: tuple[int, int], budget: int) -> int:
    each = (second[1] - first[1]) / (second[0] - first[0])
    return max(0, round((budget - first[1] + each * first[0]) / each))


def _negative(first: tuple[int, int], second: tuple[int, int], budget: int) -> int:
    each = (second[1] - first[1]) / (second[0] - first[0])
    return int((budget - first[1] + each * first[0]) // each)


# ---- 09-change ------------------------------------------------------------------------------------------------------


def first_change(at_peak: dict[str, int]) -> str:
    """What to change first, given the bytes of each category at the peak: the change that goes at the largest group.

    "checkpointing" lowers activations, "optimizer" lowers optimizer state, "chunked loss" lowers temporaries at the logits,
    "bf16 weights" lowers parameters and gradients together.
    """
    groups = {
        "checkpointing": at_peak["activations"],
        "optimizer": at_peak["optimizer"],
        "chunked loss": at_peak["temporaries"],
        "bf16 weights": at_peak["parameters"] + at_peak["gradients"],
    }
    return max(groups, key=groups.__getitem__)


_CASES = (
    ({"activations": 9, "optimizer": 4, "temporaries": 3, "parameters": 2, "gradients": 2}, "checkpointing"),
    ({"activations": 1, "optimizer": 8, "temporaries": 1, "parameters": 4, "gradients": 0}, "optimizer"),
    ({"activations": 3, "optimizer": 2, "temporaries": 7, "parameters": 1, "gradients": 0}, "chunked loss"),
    ({"activations": 6, "optimizer": 5, "temporaries": 1, "parameters": 4, "gradients": 4}, "bf16 weights"),
)


def _check_change(answer: Answer) -> None:
    words = {wanted for _, wanted in _CASES}
    for at_peak, wanted in _CASES:
        found = answer({**at_peak, "inputs": 0})
        expect(found in words, f"the answer is one of {', '.join(sorted(words))}, not {found!r}")
        sizes = ", ".join(f"{name} {size}" for name, size in at_peak.items())
        hint = " (parameters and gradients shrink together: add them)" if wanted == "bf16 weights" else ""
        expect(found == wanted, f"with {sizes} the first change is {wanted!r}{hint}; your function said {found!r}")


def _always_checkpoints(at_peak: dict[str, int]) -> str:
    return "checkpointing"


def _forgets_gradients(at_peak: dict[str, int]) -> str:
    return first_change({**at_peak, "gradients": 0})


def _names_the_category(at_peak: dict[str, int]) -> str:
    return max(at_peak, key=at_peak.__getitem__)


# ---- 09-impossible --------------------------------------------------------------------------------------------------


def impossible(estimates: list[dict[str, int]]) -> list[int]:
    """Positions of the estimates that cannot be true: each has "live", "allocated", "reserved" and "nvidia_smi" in bytes."""
    wrong = []
    for position, estimate in enumerate(estimates):
        order = [estimate[name] for name in ("live", "allocated", "reserved", "nvidia_smi")]
        if order != sorted(order) or estimate["reserved"] % 2**21:
            wrong.append(position)
    return wrong


def _estimate(live: int, allocated: int, reserved: int, smi: int) -> dict[str, int]:
    return {"live": live, "allocated": allocated, "reserved": reserved, "nvidia_smi": smi}


def _check_impossible(answer: Answer) -> None:
    good = _estimate(10 * MIB, 11 * MIB, 20 * MIB, 450 * MIB)
    equal = _estimate(20 * MIB, 20 * MIB, 20 * MIB, 450 * MIB)
    expect(answer([good]) == [], "the tensors' 10 MiB, 11 allocated, 20 reserved, 450 by nvidia-smi: nothing speaks against it")
    expect(answer([equal]) == [], "equal figures are possible: a tensor may fill its segment exactly")
    more_live = _estimate(12 * MIB, 11 * MIB, 20 * MIB, 450 * MIB)
    expect(
        answer([good, more_live]) == [1],
        "blocks cannot be smaller than the tensors in them: live above allocated is impossible",
    )
    thin = _estimate(10 * MIB, 24 * MIB, 20 * MIB, 450 * MIB)
    expect(answer([thin]) == [0], "blocks are cut from segments: allocated above reserved is impossible")
    low = _estimate(10 * MIB, 11 * MIB, 20 * MIB, 18 * MIB)
    expect(answer([low]) == [0], "nvidia-smi sees the segments and CUDA's context: below reserved it cannot be")
    odd = _estimate(10 * MIB, 11 * MIB, 13 * MIB, 450 * MIB)
    expect(answer([odd, good]) == [0], "segments are multiples of 2 MiB, so 13 MiB reserved is impossible")


def _only_smi(estimates: list[dict[str, int]]) -> list[int]:
    return [i for i, e in enumerate(estimates) if e["nvidia_smi"] < max(e.values())]


def _no_equals(estimates: list[dict[str, int]]) -> list[int]:
    return [
        i
        for i, e in enumerate(estimates)
        if not e["live"] < e["allocated"] < e["reserved"] < e["nvidia_smi"] or e["reserved"] % (2 * MIB)
    ]


def _no_segments(estimates: list[dict[str, int]]) -> list[int]:
    return [i for i, e in enumerate(estimates) if not e["live"] <= e["allocated"] <= e["reserved"] <= e["nvidia_smi"]]


EXERCISES = [
    Exercise(
        id="09-layer",
        solution=layer_bytes,
        check=_check_layer,
        hints=(
            "Start with fused attention: then only the 34sbh of the table is kept.",
            "Without it three s x s matrices come in, a head and example: softmax's result, its mask, the dropped result.",
            "`34*s*b*h`, and `5*a*s*s*b` more where attention is not fused.",
        ),
        wrong=(
            Wrong(_wide_mask, "takes a dropout mask for two bytes an element", "one byte an element"),
            Wrong(_one_head, "forgets that each head has its own matrix", "every head"),
            Wrong(_always_eager, "adds the matrices to fused attention too", "fused attention never holds"),
            Wrong(_fp32, "counts four bytes a number", "68 bytes"),
        ),
        note="At s = 2048 and h / a = 64 the s x s part is 4.7 times the rest: that is what fused attention saves.",
    ),
    Exercise(
        id="09-batch",
        solution=largest_batch,
        check=_check_batch,
        hints=(
            "Peak memory is a fixed part plus so much an example: a straight line.",
            "Its slope is the difference of the peaks over the difference of the batches.",
            "`fixed = p1 - each * b1`, then `(budget - fixed) // each`, and never below 0.",
        ),
        wrong=(
            Wrong(_proportional, "divides the budget by bytes per example of one measurement", "fixed part"),
            Wrong(_rounds, "rounds to the nearest batch", "lacks one byte"),
            Wrong(_negative, "gives a negative batch for a small budget", "never below"),
        ),
        note="Measure at two batches that fit, then compute. `max_batch` does the same allocation by allocation, and checks.",
    ),
    Exercise(
        id="09-change",
        solution=first_change,
        check=_check_change,
        hints=(
            "Ask which bytes each change would touch.",
            "Parameters and gradients shrink together when weights become bf16.",
            "Make a dict from change to bytes and take the key with the largest value.",
        ),
        wrong=(
            Wrong(_always_checkpoints, "reaches for checkpointing whatever the peak is made of", "'optimizer'"),
            Wrong(_forgets_gradients, "forgets that gradients have the weights' type", "add them"),
            Wrong(_names_the_category, "names the category instead of a change", "is one of"),
        ),
        note="The peak decides. A change that lowers another moment of the step lowers nothing that counts.",
    ),
    Exercise(
        id="09-impossible",
        solution=impossible,
        check=_check_impossible,
        hints=(
            "Four figures, each inside the next: tensors in blocks, blocks in segments, segments in the process.",
            "Equal neighbours are possible; a smaller one after a larger one is not.",
            "Compare the list with its sorted self, and look whether `reserved` is a multiple of 2 MiB.",
        ),
        wrong=(
            Wrong(_only_smi, "checks only that nvidia-smi is the largest", "live above allocated"),
            Wrong(_no_equals, "takes equal figures for impossible", "equal figures"),
            Wrong(_no_segments, "does not know that segments come in 2 MiB", "2 MiB"),
        ),
        note="Most wrong estimates fall to this: a figure of one kind is compared with a figure of another.",
    ),
]
