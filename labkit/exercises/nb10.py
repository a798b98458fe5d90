"""Exercises of notebook 10: the mean of uneven parts, bytes a device by stage, bytes on the wire, how many devices."""

from labkit.exercises.core import Answer, Exercise, Wrong, expect

# ---- 10-average -----------------------------------------------------------------------------------------------------


def average(means: list[float], counts: list[int]) -> float:
    """The mean over all examples, from each device's mean and how many examples it had."""
    return sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)


def _check_average(answer: Answer) -> None:
    even = answer([1.0, 3.0], [4, 4])
    expect(even != 4.0, "the devices' means were added up and not divided: the gradient would grow with the number of devices")
    expect(even != 0.5, "each mean has been divided by its count already: multiply by it before you divide by all examples")
    expect(even == 2.0, f"two equal halves with means 1 and 3 have the mean 2, your function gave {even}")
    uneven = answer([1.0, 3.0], [6, 2])
    expect(uneven != 2.0, "with 6 and 2 examples the first mean stands for three times as many: weigh each by its count")
    expect(uneven == 1.5, f"means 1 of 6 examples and 3 of 2 make 12 / 8 = 1.5, your function gave {uneven}")
    alone = answer([5.0, 0.0], [3, 0])
    expect(alone == 5.0, f"a device without examples has no say: the mean of all is 5, your function gave {alone}")


def _plain_mean(means: list[float], counts: list[int]) -> float:
    return sum(means) / len(means)


def _sum(means: list[float], counts: list[int]) -> float:
    return sum(means)


def _divides_only(means: list[float], counts: list[int]) -> float:
    return sum(means) / sum(counts)


# ---- 10-stages ------------------------------------------------------------------------------------------------------


def device_bytes(parameters: int, devices: int, stage: int) -> float:
    """Bytes of training state on one device: per parameter 2 of weights, 2 of gradients, 12 of optimizer, spread by stage."""
    weights, gradients, optimizer = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        optimizer /= devices
    if stage >= 2:
        gradients /= devices
    if stage >= 3:
        weights /= devices
    return weights + gradients + optimizer


def _check_stages(answer: Answer) -> None:
    n = 7_500_000_000
    none = answer(n, 64, 0)
    expect(isinstance(none, int | float), f"the answer is a number of bytes, not {none!r}")
    expect(none != 16 * n / 64, "stage 0 spreads nothing: each of the 64 devices holds all 16 bytes a parameter")
    expect(none == 120e9, f"stage 0 holds 16 bytes a parameter, 120 GB for 7.5 billion; your function gave {none / 1e9:.4g} GB")
    first = answer(n, 64, 1)
    expect(first != 4 * n / 64 + 12 * n, "stage 1 spreads the 12 bytes of the optimizer, which is where most of it is")
    for stage, want in ((1, 4 * n + 12 * n / 64), (2, 2 * n + 14 * n / 64), (3, 16 * n / 64)):
        got = answer(n, 64, stage)
        expect(got != 16 * n / 64 or stage == 3, f"stage {stage} does not spread everything; weights are left to stage 3")
        expect(
            abs(got - want) < 1,
            f"stage {stage} on 64 devices holds {want / 1e9:.4g} GB, your function gave {got / 1e9:.4g} GB",
        )
    expect(answer(1000, 1, 3) == 16_000, "on one device every stage holds all: 16 bytes a parameter")


def _spreads_all(parameters: int, devices: int, stage: int) -> float:
    return 16 * parameters / devices


def _one_for_all(parameters: int, devices: int, stage: int) -> float:
    return 16 * parameters / devices if stage else 16 * parameters


def _wrong_order(parameters: int, devices: int, stage: int) -> float:
    weights, gradients, optimizer = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        weights, gradients = weights / devices, gradients / devices
    if stage >= 2:
        optimizer /= devices
    return weights + gradients + optimizer


# ---- 10-wire --------------------------------------------------------------------------------------------------------


def wire_bytes(size: int, devices: int) -> float:
    """Bytes that each device sends to add up a gradient of `size` bytes around a ring of `devices`."""
    return 2 * (devices - 1) * size / devices


def _check_wire(answer: Answer) -> None:
    expect(answer(1000, 1) == 0, "a single device has nobody to send to: 0 bytes")
    four = answer(1000, 4)
    expect(four != 750, "750 bytes is one round of the ring; the sums then have to go round once more")
    expect(four != 2000, "a device never sends its last piece: N - 1 of N pieces go out in each round")
    expect(four != 6000, "6,000 bytes is what all four send together; the question is for one")
    expect(four == 1500, f"4 devices cut 1,000 bytes into pieces of 250 and send 3 + 3 of them: 1,500, not {four}")
    many = answer(1000, 1000)
    expect(many == 1998, f"with 1,000 devices it is 1,998 bytes, still below twice the size; your function gave {many}")


def _one_round(size: int, devices: int) -> float:
    return (devices - 1) * size / devices


def _twice(size: int, devices: int) -> float:
    return 2 * size if devices > 1 else 0


def _all_together(size: int, devices: int) -> float:
    return 2 * (devices - 1) * size


# ---- 10-devices -----------------------------------------------------------------------------------------------------


def devices_needed(state: int, rest: int, budget: int) -> int | None:
    """The fewest devices of `budget` bytes for `state` spread over them and `rest` whole on each; None where none do."""
    room = budget - rest
    if room <= 0:
        return None
    return max(1, -(-state // room))


def _check_devices(answer: Answer) -> None:
    got = answer(1000, 100, 400)
    expect(
        got != 3,
        "3 is too few: 334 bytes of state and the 100 that every device holds exceed 400; divide the state alone, round up",
    )
    expect(got == 4, f"1,000 of state on 4 devices is 250 each, and 100 more make 350 of 400: 4, your function said {got}")
    got = answer(900, 100, 400)
    expect(got == 3, f"900 of state on 3 devices is 300 each, and 100 more fill the 400 exactly: 3, your function said {got}")
    got = answer(50, 100, 400)
    expect(got == 1, f"what fits one device needs one, not {got}")
    for rest in (400, 500):
        got = answer(900, rest, 400)
        expect(got is None, f"with {rest} of 400 bytes taken on each device no number of them holds any state: None, not {got}")


def _rounds_down(state: int, rest: int, budget: int) -> int | None:
    return max(1, state // (budget - rest)) if budget > rest else None


def _spreads_the_rest(state: int, rest: int, budget: int) -> int | None:
    return max(1, -(-(state + rest) // budget))


def _never_none(state: int, rest: int, budget: int) -> int | None:
    return max(1, -(-state // max(budget - rest, 1)))


EXERCISES = [
    Exercise(
        id="10-average",
        solution=average,
        check=_check_average,
        hints=(
            "A mean of means is the mean only where the parts are equally large.",
            "Go back to sums: a mean times its count is the sum over that device's examples.",
            "Add up `mean * count` over the devices and divide by the sum of the counts.",
        ),
        wrong=(
            Wrong(_plain_mean, "takes the mean of the means whatever the counts", "weigh each by its count"),
            Wrong(_sum, "adds the devices' means up", "added up and not divided"),
            Wrong(_divides_only, "divides by all examples what is a mean already", "multiply by it before"),
        ),
        note="The same mistake hides in gradient accumulation, when the last micro-batch is short or padding does not count.",
    ),
    Exercise(
        id="10-stages",
        solution=device_bytes,
        check=_check_stages,
        hints=(
            "Start with stage 0: 16 bytes a parameter on every device.",
            "Each stage divides one more part by the number of devices: optimizer, then gradients, then weights.",
            "`optimizer /= devices` from stage 1 on, `gradients /= devices` from 2 on, `weights /= devices` at 3.",
        ),
        wrong=(
            Wrong(_spreads_all, "takes data parallel training for sharded", "stage 0 spreads nothing"),
            Wrong(_one_for_all, "spreads everything from stage 1 on", "weights are left to stage 3"),
            Wrong(_wrong_order, "spreads the weights first", "the 12 bytes of the optimizer"),
        ),
        note="The figures for 64 devices are those of the paper's first figure: 120, 31.4, 16.6 and 1.9 GB (arXiv:1910.02054).",
    ),
    Exercise(
        id="10-wire",
        solution=wire_bytes,
        check=_check_wire,
        hints=(
            "Cut the gradient into one piece a device. How many pieces leave a device in the first round?",
            "One round leaves each piece summed on one device. A second round brings the sums to everybody.",
            "Two rounds of N - 1 pieces of size / N.",
        ),
        wrong=(
            Wrong(_one_round, "forgets that the sums have to travel too", "once more"),
            Wrong(_twice, "lets a device send all its pieces", "never sends its last piece"),
            Wrong(_all_together, "counts the bytes of all devices", "all four send together"),
        ),
        note="The amount hardly grows with the number of devices, which is why the ring is used; the number of turns does.",
    ),
    Exercise(
        id="10-devices",
        solution=devices_needed,
        check=_check_devices,
        hints=(
            "Only the state is divided; the rest is on every device.",
            "How much state has room beside the rest? Where that is nothing, no number of devices helps.",
            "Round up: `-(-state // room)`, at least 1, and None where `room` is not above 0.",
        ),
        wrong=(
            Wrong(_rounds_down, "rounds the number of devices down", "round up"),
            Wrong(_spreads_the_rest, "divides what every device holds as well", "divide the state alone"),
            Wrong(_never_none, "promises a fit where activations alone are too large", "None, not"),
        ),
        note="When the rest is too large, more devices do not help: checkpointing or a smaller batch a device does.",
    ),
]
