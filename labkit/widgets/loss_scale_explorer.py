"""LossScaleExplorer: a model's gradients over the ranges of fp16 and bf16, with the loss scale to slide."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from labkit.widgets.base import InvalidValue, LabWidget, checked, number_between, script, style
from labkit.widgets.bit_viewer import check_formats
from labkit.widgets.range_explorer import exponent_histogram

#: GradScaler starts at 2^16; no scaler of an fp32 loss reaches past 2^40.
LARGEST_SHIFT = 40
ALL = "all parameters"


def _check_histograms(histograms: Any) -> dict[str, Any]:
    if not isinstance(histograms, Mapping) or not histograms:
        raise ValueError("histograms are a dict of at least one name and its histogram")
    return dict(histograms)


class LossScaleExplorer(LabWidget):
    """The exponents of gradients over the ranges of `formats` while the loss is multiplied by 2^shift.

    `source`: a module (its `.grad`s are read), or a dict of names and tensors. Pass gradients that were computed in fp32: what
    fp16 has lost already cannot be shown. Below the picture stands what a dynamic scaler would do at this scale.

    Traits to read, set or observe: `shift` (0 to 40), `part` (a parameter's name, or "all parameters"). Bad input raises
    ValueError or TypeError and changes nothing.

    Example::

        loss.backward()
        LossScaleExplorer(model)
    """

    _esm = script("codec.js", "dom.js", "histogram.js", "loss_scale_explorer.js")
    _css = style("histogram.css", "loss_scale_explorer.css")
    _shown = ("shift", "part")

    histograms = checked(_check_histograms, default={ALL: {"exponents": [], "counts": []}})
    formats = checked(check_formats, default=check_formats(("fp16", "bf16")))
    shift = checked(number_between(0, LARGEST_SHIFT, whole=True), default=0)
    part = checked(str, default=ALL)

    def __init__(
        self, source: nn.Module | Mapping[str, torch.Tensor], *, shift: int = 0, formats: Any = ("fp16", "bf16")
    ) -> None:
        tensors = _gradients(source)
        together = torch.cat([tensor.detach().double().flatten() for tensor in tensors.values()])
        specs = check_formats(formats)
        named = {ALL: together} | (tensors if len(tensors) > 1 else {})
        histograms = {name: exponent_histogram(tensor, specs) for name, tensor in named.items()}
        super().__init__(histograms=histograms, formats=specs, shift=shift)
        self.observe(self._check_part, names=["part"])

    def _check_part(self, change: Any) -> None:
        if change["new"] not in self.histograms:
            self.part = change["old"]
            raise InvalidValue(f"part: {change['new']!r} is not one of {', '.join(self.histograms)}")


def _gradients(source: Any) -> dict[str, torch.Tensor]:
    if isinstance(source, nn.Module):
        found = {name: parameter.grad for name, parameter in source.named_parameters() if parameter.grad is not None}
        if not found:
            raise ValueError("the model has no gradients yet: call backward() first")
        return found
    if not isinstance(source, Mapping):
        raise TypeError(f"a module or a dict of names and tensors is needed, not {type(source).__name__}")
    if not source:
        raise ValueError("a dict of at least one tensor is needed, not an empty one")
    return dict(source)
