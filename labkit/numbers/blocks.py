"""MX blocks: 32 small elements that share one power-of-two scale (OCP Microscaling Formats 1.0).

An fp4 alone spans 0.5 to 6. With a scale for every 32 neighbours it follows a tensor over fp32's whole range, for a quarter of
a bit more an element.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from labkit.numbers.formats import FORMATS, FloatFormat, Rounding
from labkit.numbers.tensors import quantize

ScaleRule = Literal["floor", "round_up"]

BLOCK = 32
#: Element format of each MX format.
MX_FORMATS: dict[str, str] = {
    "mxfp8_e4m3": "fp8_e4m3fn",
    "mxfp8_e5m2": "fp8_e5m2",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp4": "fp4_e2m1",
}


@dataclass(frozen=True)
class MXTensor:
    """A tensor in MX blocks along its last dimension."""

    name: str
    #: (..., blocks, 32) float32: the elements, values of the element format.
    elements: Tensor
    #: (..., blocks) float32: the scales, powers of two or NaN.
    scales: Tensor
    #: The shape before blocking; the last block is padded with zeros.
    shape: torch.Size

    @property
    def bits_per_element(self) -> float:
        """Storage an element, its share of the scale included."""
        return FORMATS[MX_FORMATS[self.name]].bits + FORMATS["e8m0"].bits / BLOCK

    def dequantize(self) -> Tensor:
        """The tensor that the blocks stand for: float32, the original shape; a block with scale NaN is all NaN."""
        flat = (self.elements * self.scales.unsqueeze(-1)).flatten(-2)
        return flat[..., : self.shape[-1]].reshape(self.shape)


def mx_quantize(
    tensor: Tensor,
    name: str,
    *,
    scale_rule: ScaleRule = "floor",
    rounding: Rounding = "nearest_even",
    generator: torch.Generator | None = None,
) -> MXTensor:
    """`tensor` (any shape of at least one dimension) in MX blocks of 32 along its last dimension.

    `scale_rule` says how a block's scale follows from its largest magnitude m, where the element format's largest number M
    has exponent e:

    - "floor": 2^(floor(log2 m) - e), the rule of OCP MX 1.0, 6.3. What is then above M saturates: up to m / M = 2^(e+1) / M.
    - "round_up": the least power of two that is at least m / M, so nothing saturates (arXiv:2506.08027).

    A block of zeros has the smallest scale; one with an infinity or NaN has scale NaN. Raises ValueError for a name or rule
    that is unknown, TypeError for a tensor that is not floating-point.
    """
    if name not in MX_FORMATS:
        raise ValueError(f"MX format {name!r} is unknown; there are: {', '.join(MX_FORMATS)}")
    if scale_rule not in get_args(ScaleRule):
        raise ValueError(f"scale_rule {scale_rule!r} is unknown; there are: {', '.join(get_args(ScaleRule))}")
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"mx_quantize takes a floating-point tensor, not {getattr(tensor, 'dtype', type(tensor))}")
    if tensor.dim() == 0:
        raise ValueError("mx_quantize takes a tensor of at least one dimension: a block is 32 neighbours in the last one")
    blocks = _blocks(tensor.detach().double())  # exact for every dtype, and so is the division by the scale below
    element = FORMATS[MX_FORMATS[name]]
    largest = blocks.abs().amax(-1)
    scales = SCALE_RULES[scale_rule](largest, element)
    finite = scales.isfinite()
    scaled = torch.where(finite.unsqueeze(-1), blocks / scales.unsqueeze(-1), 0.0)
    elements = quantize(scaled, element, rounding=rounding, overflow="saturate", generator=generator)
    return MXTensor(name, elements.float(), scales.float(), tensor.shape)


def _blocks(tensor: Tensor) -> Tensor:
    padding = -tensor.shape[-1] % BLOCK
    return torch.nn.functional.pad(tensor, (0, padding)).unflatten(-1, (-1, BLOCK))


def _floor_scale(largest: Tensor, element: FloatFormat) -> Tensor:
    exponent = element.fields(element.max_code).true_exponent
    assert exponent is not None
    return _to_scale(largest * 2.0**-exponent, "down")


def _round_up_scale(largest: Tensor, element: FloatFormat) -> Tensor:
    # The quotient is rounded, yet never down to a power of two: the next float64 above M * 2^k gives one above 2^k.
    return _to_scale(largest / element.max, "up")


def _to_scale(ratio: Tensor, rounding: Rounding) -> Tensor:
    scale = quantize(torch.where(ratio.isfinite(), ratio, 1.0), "e8m0", rounding=rounding, overflow="saturate")
    return scale.masked_fill(~ratio.isfinite(), math.nan)


SCALE_RULES: dict[str, Callable[[Tensor, FloatFormat], Tensor]] = {"floor": _floor_scale, "round_up": _round_up_scale}


def error_report(tensor: Tensor, names: tuple[str, ...] = tuple(MX_FORMATS)) -> Any:
    """What each MX format and scale rule does to `tensor`: a pandas DataFrame, a row a pair.

    Columns: bits an element; signal to noise in dB, 10 log10(sum x^2 / sum error^2); the largest error over the largest
    magnitude; the shares of non-zero elements that became zero and of elements that saturated.
    """
    import pandas as pd

    x = tensor.detach().double()
    rows = []
    for name in names:
        for rule in SCALE_RULES:
            mx = mx_quantize(tensor, name, scale_rule=rule)  # type: ignore[arg-type]
            back = mx.dequantize().double()
            error = (back - x).abs()
            limit = (mx.scales.double() * FORMATS[MX_FORMATS[name]].max).unsqueeze(-1).expand(mx.elements.shape)
            limit = limit.flatten(-2)[..., : x.shape[-1]].reshape(x.shape)
            rows.append(
                {
                    "format": name,
                    "scale rule": rule,
                    "bits an element": mx.bits_per_element,
                    "signal to noise (dB)": _decibels(x.square().sum(), error.square().sum()),
                    "largest error / largest value": float(error.max() / x.abs().max()),
                    "became zero (%)": 100 * float(((back == 0) & (x != 0)).double().mean()),
                    "saturated (%)": 100 * float((x.abs() > limit).double().mean()),
                }
            )
    return pd.DataFrame(rows)


def _decibels(signal: Tensor, noise: Tensor) -> float:
    return math.inf if noise == 0 else 10 * math.log10(float(signal / noise))
