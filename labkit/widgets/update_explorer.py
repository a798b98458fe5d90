"""UpdateExplorer: one weight, the same small update added again and again, in three formats and three ways."""

from fractions import Fraction
from typing import Any

from labkit.numbers import as_format
from labkit.widgets.base import LabWidget, checked, number_between, one_of, script, style
from labkit.widgets.source import read_number, write_source

FORMATS = ("bf16", "fp16", "fp32")
LARGEST_STEPS = 500


def _check_number(value: Any) -> str:
    text = write_source(value)
    if read_number(text).kind != "finite":
        raise ValueError(f"{text!r} is not a finite number")
    return text


class UpdateExplorer(LabWidget):
    """What is left of `steps` equal updates of one weight: rounded to nearest, rounded stochastically, or with Kahan's sum.

    `weight` and `update` are numbers or their texts ("1", "2^-10", 1e-4); `format` is the one drawn, one of bf16, fp16, fp32;
    the table has all three. `seed` fixes the draws of stochastic rounding. Every sum is exact and rounded once.

    Traits to read, set or observe: all of these; `results` holds the last weight by format and way, as floats. Bad input
    raises ValueError or TypeError and changes nothing.
    """

    _esm = script("codec.js", "dom.js", "update_explorer.js")
    _css = style("update_explorer.css")
    _shown = ("weight", "update", "steps", "format")

    weight = checked(_check_number, default="1")
    update = checked(_check_number, default="0.001")
    steps = checked(number_between(1, LARGEST_STEPS, whole=True), default=100)
    format = checked(one_of(*FORMATS), default="bf16")
    seed = checked(number_between(0, 2**31 - 1, whole=True), default=0)

    def __init__(
        self, weight: Any = "1", update: Any = "0.001", *, steps: int = 100, format: str = "bf16", seed: int = 0
    ) -> None:
        super().__init__(weight=weight, update=update, steps=steps, format=as_format(format).name, seed=seed)

    @property
    def results(self) -> dict[str, dict[str, float]]:
        """The weight after all steps: by format, then by way (`nearest`, `stochastic`, `kahan`)."""
        return {name: {way: path[-1] for way, path in self._paths(name).items()} for name in FORMATS}

    def _paths(self, name: str) -> dict[str, list[float]]:
        return update_paths(self.weight, self.update, self.steps, name, seed=self.seed)


def update_paths(weight: str, update: str, steps: int, fmt: str, *, seed: int = 0) -> dict[str, list[float]]:
    """The weight at step 0, 1, ..., `steps` under each way of adding; the twin of `updatePaths` in update_explorer.js.

    `nearest` and `stochastic` round weight + update once a step. `kahan` keeps what was cut off in a second number of the same
    format and adds it to the next update (Kahan 1965), as `labkit.techniques.optimizers` does.
    """
    target = as_format(fmt)
    start, change = _fraction(weight), _fraction(update)

    def rounded(value: Fraction, **options: Any) -> Fraction:
        return target.decode_exact(target.encode(value, overflow="saturate", **options))

    paths: dict[str, list[float]] = {"nearest": [], "stochastic": [], "kahan": []}
    nearest = stochastic = kahan = rounded(start)
    kept = Fraction(0)
    draws = Draws(seed)
    for step in range(steps + 1):
        if step:
            nearest = rounded(nearest + change)
            stochastic = rounded(stochastic + change, rounding="stochastic", draw=draws())
            wanted = change + kept
            new = rounded(kahan + wanted)
            kept, kahan = rounded(wanted - (new - kahan)), new
        for name, value in zip(paths, (nearest, stochastic, kahan), strict=True):
            paths[name].append(float(value))
    return paths


class Draws:
    """Uniform draws in [0, 1) from a seed, the same as `makeDraws` in update_explorer.js (mulberry32, by Tommy Ettinger)."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def __call__(self) -> float:
        self._state = (self._state + 0x6D2B79F5) & _MASK
        state = self._state
        mixed = (state ^ state >> 15) * (state | 1) & _MASK
        mixed ^= mixed + ((mixed ^ mixed >> 7) * (mixed | 61) & _MASK) & _MASK
        return (mixed ^ mixed >> 14) / 2**32


_MASK = 0xFFFFFFFF


def _fraction(text: str) -> Fraction:
    number = read_number(text)
    return Fraction(-number.numerator if number.sign else number.numerator, number.denominator)
