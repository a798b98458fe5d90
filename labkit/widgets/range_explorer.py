"""RangeExplorer: a tensor's exponents over the ranges of formats, with a scale to slide."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from labkit.numbers import FloatFormat
from labkit.widgets.base import LabWidget, checked, number_between, script, style
from labkit.widgets.bit_viewer import check_formats, format_of

_LISTS = ("exponents", "counts", "powers")
_TOTALS = ("zeros", "infinities", "nans")


def exponent_histogram(tensor: torch.Tensor, formats: Iterable[Any] = ("fp16", "bf16")) -> dict[str, Any]:
    """How many elements of `tensor` have each exponent, and what it takes to tell exactly what each format would lose.

    Returns plain lists: `exponents` e ascending without gaps; `counts` of elements in [2^e, 2^(e+1)); `powers`, those that are
    exactly 2^e; `over[format]`, those that overflow (ties to even) where their binade is the format's last; and the totals
    `zeros`, `infinities`, `nans`. Raises TypeError, ValueError for what is no tensor of floats.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch tensor is needed, not {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise ValueError(f"a tensor of floats is needed, not of {tensor.dtype}")
    values = tensor.detach().to("cpu", torch.float64).abs().flatten()  # every torch float type fits into float64
    finite = values[torch.isfinite(values) & (values > 0)]
    mantissa, exponent = torch.frexp(finite)  # mantissa in [0.5, 1)
    lowest = int(exponent.min()) if finite.numel() else 0
    bins = (exponent - lowest).long()
    size = int(bins.max()) + 1 if finite.numel() else 0

    def per_bin(chosen: torch.Tensor) -> list[int]:
        return torch.bincount(bins[chosen], minlength=size).tolist()

    over = {}
    for fmt in map(format_of, formats):
        threshold, tie_overflows = _overflow_threshold(fmt)
        over[fmt.name] = per_bin(2 * mantissa >= threshold if tie_overflows else 2 * mantissa > threshold)
    return {
        "exponents": [lowest - 1 + step for step in range(size)],
        "counts": per_bin(torch.ones_like(finite, dtype=torch.bool)),
        "powers": per_bin(mantissa == 0.5),
        "over": over,
        "zeros": int((values == 0).sum()),
        "infinities": int(torch.isinf(values).sum()),
        "nans": int(torch.isnan(values).sum()),
    }


def _overflow_threshold(fmt: FloatFormat) -> tuple[float, bool]:
    """Half an ulp above the largest number, in units of its binade, and whether that tie itself goes up."""
    fraction = fmt.max_code & ((1 << fmt.fraction_bits) - 1)
    return 1 + (fraction + 0.5) / 2**fmt.fraction_bits, bool(fmt.max_code & 1) or fmt.fraction_bits == 0


def _check_histogram(histogram: Any) -> dict[str, Any]:
    if not isinstance(histogram, Mapping):
        raise TypeError(f"a histogram is a dict, not {type(histogram).__name__}")
    if "exponents" not in histogram:
        # The short form: counts by exponent.
        exponents = sorted(histogram)
        histogram = {"exponents": exponents, "counts": [histogram[exponent] for exponent in exponents]}
    full: dict[str, Any] = {name: list(histogram.get(name, [0] * len(histogram["exponents"]))) for name in _LISTS}
    full |= {name: histogram.get(name, 0) for name in _TOTALS}
    full["over"] = {str(name): list(counts) for name, counts in histogram.get("over", {}).items()}
    lists = [*(full[name] for name in _LISTS), *full["over"].values()]
    if any(len(one) != len(full["exponents"]) for one in lists):
        raise ValueError("the lists of a histogram have one entry for each exponent")
    for number in (*(n for one in lists for n in one), *(full[name] for name in _TOTALS)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"exponents and counts are ints, not {number!r}")
    if any(number < 0 for one in lists[1:] for number in one) or any(full[name] < 0 for name in _TOTALS):
        raise ValueError("the counts of a histogram are not negative")
    return full


def _check_signed_formats(formats: Any) -> list[dict[str, Any]]:
    specs = check_formats(formats)
    for spec in specs:
        if not spec["signed"]:
            raise ValueError(f"{spec['name']} has no sign bit, so it holds no tensor of numbers by itself")
    return specs


class RangeExplorer(LabWidget):
    """The exponents of a tensor over the ranges of `formats`, and the share that each loses at any power-of-two scale.

    `data`: a torch tensor of floats, a histogram from `exponent_histogram`, or counts by exponent {-3: 10, -2: 25}; from such
    counts alone, numbers of a format's last binade count as fitting. `shift`: the scale is 2^shift, from -40 to 40.

    Traits to read, set or observe: `shift`, `formats`, `histogram`. Bad input raises ValueError and changes nothing.
    """

    _esm = script("codec.js", "dom.js", "histogram.js", "range_explorer.js")
    _css = style("histogram.css", "range_explorer.css")
    _shown = ("formats", "shift")

    histogram = checked(_check_histogram, default=_check_histogram({}))
    formats = checked(_check_signed_formats, default=check_formats(("fp16", "bf16")))
    shift = checked(number_between(-40, 40, whole=True), default=0)

    def __init__(self, data: Any, *, formats: Any = ("fp16", "bf16", "fp8_e4m3fn", "fp8_e5m2"), shift: int = 0) -> None:
        specs = _check_signed_formats(formats)
        histogram = exponent_histogram(data, specs) if isinstance(data, torch.Tensor) else data
        super().__init__(histogram=histogram, formats=specs, shift=shift)

    def _repr_of(self, name: str) -> str:
        if name == "formats":
            return repr(tuple(spec["name"] for spec in self.formats))
        return super()._repr_of(name)
