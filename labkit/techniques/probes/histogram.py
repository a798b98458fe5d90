"""Where the gradients of a model lie on the scale of powers of two, and what a format would keep of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Exponents of the smallest subnormal, of the smallest normal and of the largest number of each format (IEEE 754; bf16 and
#: fp8 from their bit layouts: OCP 8-bit floating point specification 1.0, table 1).
RANGES: dict[str, tuple[int, int, int]] = {
    "fp32": (-149, -126, 127),
    "bf16": (-133, -126, 127),
    "fp16": (-24, -14, 15),
    "fp8_e5m2": (-16, -14, 15),
    "fp8_e4m3fn": (-9, -6, 8),
}


@dataclass(frozen=True, slots=True)
class Shares:
    """What a format makes of the numbers, as shares of all of them that sum to 1."""

    #: Rounded to zero, or zero before.
    zero: float
    #: Kept with fewer bits than the format has.
    subnormal: float
    normal: float
    #: Beyond the largest number, or not finite before.
    infinite: float


@dataclass(frozen=True, slots=True)
class GradientHistogram:
    """Counts of numbers by exponent: `counts[i]` have a magnitude in [2^e, 2^(e+1)) with e = `exponents[i]`."""

    exponents: tuple[int, ...]
    counts: tuple[int, ...]
    zeros: int
    nonfinite: int

    @property
    def total(self) -> int:
        """How many numbers there are, zeros and non-finite ones included."""
        return sum(self.counts) + self.zeros + self.nonfinite

    def below(self, exponent: int) -> float:
        """The share of all numbers that are not zero and smaller in magnitude than 2^exponent."""
        small = sum(count for e, count in zip(self.exponents, self.counts, strict=True) if e < exponent)
        return small / max(self.total, 1)

    def shares(self, fmt: str = "fp16", *, scale: int = 0) -> Shares:
        """What `fmt` makes of the numbers after a multiplication by 2^scale.

        Zero means below half of the smallest subnormal, where rounding to nearest gives zero. Whole exponents are
        judged: the sliver between the largest number and the next power of two counts as normal.
        Raises ValueError for a format that is not in `RANGES`.
        """
        if fmt not in RANGES:
            raise ValueError(f"format {fmt!r} is not one of: {', '.join(RANGES)}")
        tiny, normal, largest = RANGES[fmt]
        counts = {"zero": self.zeros, "subnormal": 0, "normal": 0, "infinite": self.nonfinite}
        for exponent, count in zip(self.exponents, self.counts, strict=True):
            e = exponent + scale
            kind = "zero" if e < tiny - 1 else "subnormal" if e < normal else "normal" if e <= largest else "infinite"
            counts[kind] += count
        total = max(self.total, 1)
        return Shares(**{kind: count / total for kind, count in counts.items()})

    def table(self, *, scale: int = 0) -> "pd.DataFrame":
        """The shares of every format of `RANGES`, in percent, a row a format."""
        import pandas as pd

        rows = {fmt: self.shares(fmt, scale=scale) for fmt in RANGES}
        columns = ("zero", "subnormal", "normal", "infinite")
        return pd.DataFrame({c: [100 * getattr(s, c) for s in rows.values()] for c in columns}, index=list(rows)).add_suffix(
            " (%)"
        )

    def plot(self, *, fmt: str = "fp16", scale: int = 0) -> "Figure":
        """The histogram over the range of `fmt`, the numbers multiplied by 2^scale first."""
        return _plot(self, fmt, scale)


def gradient_histogram(source: nn.Module | Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> GradientHistogram:
    """Count the gradients of a model (or any tensors) by exponent.

    `source` is a module, whose `.grad`s are read, or tensors that are read themselves (activations, weights, ...).

    Example::

        loss.backward()
        histogram = gradient_histogram(model)
        print(f"{histogram.below(-24):.1%} of the gradients lie under fp16's smallest number")
        histogram.plot(scale=16)

    Raises ValueError where there is no gradient to read.
    """
    tensors = list(_tensors(source))
    if not tensors:
        raise ValueError("there is no gradient to count: call backward() first")
    counts: dict[int, int] = {}
    zeros = nonfinite = 0
    for tensor in tensors:
        values = tensor.detach().flatten()
        values = values if values.dtype == torch.float64 else values.float()
        finite = values[torch.isfinite(values)]
        nonzero = finite[finite != 0]
        nonfinite += values.numel() - finite.numel()
        zeros += finite.numel() - nonzero.numel()
        # frexp gives a significand in [0.5, 1), so its exponent is one more than that of IEEE 754.
        found, many = torch.unique(torch.frexp(nonzero).exponent - 1, return_counts=True)
        for exponent, count in zip(found.tolist(), many.tolist(), strict=True):
            counts[exponent] = counts.get(exponent, 0) + count
    exponents = tuple(range(min(counts), max(counts) + 1)) if counts else ()
    return GradientHistogram(exponents, tuple(counts.get(e, 0) for e in exponents), zeros, nonfinite)


def _tensors(source: nn.Module | Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> Iterable[Tensor]:
    if isinstance(source, nn.Module):
        return [parameter.grad for parameter in source.parameters() if parameter.grad is not None]
    if isinstance(source, Tensor):
        return [source]
    return source.values() if isinstance(source, Mapping) else source


def _plot(histogram: GradientHistogram, fmt: str, scale: int) -> "Figure":
    from labkit import plots

    shares = histogram.shares(fmt, scale=scale)
    tiny, normal, largest = RANGES[fmt]
    factor = f" times 2^{scale}" if scale else ""
    before = histogram.zeros / max(histogram.total, 1)
    zero = f"{shares.zero:.1%} of the gradients{factor} are zero in {fmt} ({before:.1%} were before)"
    title = f"{zero}, {shares.subnormal:.1%} lose bits"
    fig, ax = plots.figure(title, x="exponent e: magnitudes from 2^e to below 2^(e+1)", y="share of the gradients (%)")
    zones = (
        ("becomes zero", -10_000, tiny - 1, "vermilion", "xxx"),
        ("subnormal: loses bits", tiny - 1, normal, "orange", "///"),
        ("normal", normal, largest + 1, "green", ""),
        ("infinite", largest + 1, 10_000, "black", "..."),
    )
    bars = [(e + scale, 100 * c / histogram.total) for e, c in zip(histogram.exponents, histogram.counts, strict=True)]
    for label, low, high, color, hatch in zones:
        chosen = [(e, height) for e, height in bars if low <= e < high]
        if chosen:
            look = {"color": plots.COLORS[color], "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
            ax.bar(*zip(*chosen, strict=True), width=1.0, align="edge", label=label, **look)
    # Room above the bars for the names of the borders.
    ax.set_ylim(0, 1.5 * max((height for _, height in bars), default=1))
    reached = [e for e, _ in bars] or [tiny]
    ax.set_xlim(min(*reached, tiny) - 2, max(*reached, largest) + 3)
    for value, text in ((tiny, f"smallest {fmt} number"), (normal, f"smallest normal {fmt}"), (largest + 1, f"{fmt} ends")):
        plots.label_line(ax, value, text, axis="x")
    ax.legend(loc="center right")
    return fig
