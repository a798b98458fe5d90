"""Exercises of notebook 00: bytes, the unit of everything that follows."""

from collections.abc import Callable
from math import prod

from labkit.exercises.core import Exercise, Wrong, expect


def tensor_bytes(shape: tuple[int, ...], bits: int) -> int:
    """How many bytes a tensor of this shape takes when each number has this many bits."""
    from math import prod

    return prod(shape) * bits // 8


def _check_bytes(answer: Callable[[tuple[int, ...], int], int]) -> None:
    for shape, bits, name in [((1000,), 32, "fp32"), ((4, 512, 768), 16, "bf16"), ((), 64, "fp64"), ((3, 0), 32, "fp32")]:
        want, got = tensor_bytes(shape, bits), answer(shape, bits)
        if shape and len(shape) == 1:
            expect(got != want * 8, f"{want * 8} is the number of bits of shape {shape} in {name}; a byte has 8 of them")
        if len(shape) > 1 and got == sum(shape) * bits // 8 != want:
            expect(False, f"shape {shape} holds {prod(shape):,} numbers, the product of its sides, not their sum")
        if not shape:
            expect(got != 0, "a tensor of shape () is one number, not none: an empty product is 1")
        expect(got == want, f"shape {shape} in {name} takes {want:,} bytes, your function gave {got!r}")


def _bits(shape: tuple[int, ...], bits: int) -> int:
    return prod(shape) * bits


def _sum(shape: tuple[int, ...], bits: int) -> int:
    return sum(shape) * bits // 8


def _no_scalar(shape: tuple[int, ...], bits: int) -> int:
    return prod(shape) * bits // 8 if shape else 0


def _always_fp32(shape: tuple[int, ...], bits: int) -> int:
    return prod(shape) * 4


def numbers_that_fit(memory: str, bits: int) -> int:
    """How many numbers of this many bits fit in `memory`, such as "12 GB" (10^9 bytes a GB) or "12 GiB" (2^30)."""
    amount, unit = memory.split()
    return int(float(amount) * {"GB": 10**9, "GiB": 2**30}[unit]) * 8 // bits


def _check_fit(answer: Callable[[str, int], int]) -> None:
    for memory, bits in [("12 GB", 32), ("12 GiB", 32), ("0.5 GB", 16), ("80 GiB", 8)]:
        want, got = numbers_that_fit(memory, bits), answer(memory, bits)
        swapped = memory.replace("GiB", "GB") if "GiB" in memory else memory.replace("GB", "GiB")
        other = numbers_that_fit(swapped, bits)
        expect(got != other, f"{memory!r} was read as {swapped!r}: a GB is 10^9 bytes, a GiB is 2^30, 7 % more")
        expect(got != want // 8, f"{got:,} is one number a byte too few: {bits} bits are {bits / 8:g} bytes")
        expect(got == want, f"{memory} hold {want:,} numbers of {bits} bits, your function gave {got!r}")
        expect(isinstance(got, int), f"a count of numbers is an int, your function gave {got!r}")


def _everything_is_gb(memory: str, bits: int) -> int:
    return int(float(memory.split()[0]) * 10**9) * 8 // bits


def _everything_is_gib(memory: str, bits: int) -> int:
    return int(float(memory.split()[0]) * 2**30) * 8 // bits


def _bits_as_bytes(memory: str, bits: int) -> int:
    return numbers_that_fit(memory, bits) // 8


EXERCISES = [
    Exercise(
        id="00-bytes",
        solution=tensor_bytes,
        check=_check_bytes,
        hints=(
            "How many numbers does a tensor of shape (2, 3) hold?",
            "`math.prod` multiplies the sides; the product of no sides is 1. Then turn bits into bytes.",
            "It is one line: `prod(shape) * bits // 8`.",
        ),
        wrong=(
            Wrong(_bits, "a bit is a byte", "a byte has 8 of them"),
            Wrong(_sum, "sides add up", "not their sum"),
            Wrong(_no_scalar, "a scalar holds nothing", "an empty product is 1"),
            Wrong(_always_fp32, "every number takes four bytes", "takes 3,145,728 bytes"),
        ),
        note="Shape times width is the whole arithmetic of memory. The rest is *which* tensors are alive *when*.",
    ),
    Exercise(
        id="00-fit",
        solution=numbers_that_fit,
        check=_check_fit,
        hints=(
            'Split the text at the space: `"12 GB".split()` gives the amount and the unit.',
            "A GB is 10**9 bytes and a GiB is 2**30; look the unit up in a dict.",
            "Bytes times 8, floor-divided by `bits`, is the count; keep it an int.",
        ),
        wrong=(
            Wrong(_everything_is_gb, "GiB is another spelling of GB", "was read as '12 GB'"),
            Wrong(_everything_is_gib, "GB is another spelling of GiB", "was read as '12 GiB'"),
            Wrong(_bits_as_bytes, "the width is in bytes", "32 bits are 4 bytes"),
        ),
        note="Cards are sold in GB and measured in GiB. Seven percent is often the difference between fitting and not.",
    ),
]
