"""CUDA's meaning for a step that runs on fake CPU tensors: kernels, dropout masks, autocast lists and optimizer forms.

Fake tensors of a CUDA device cannot run backward on a machine without one, those of the CPU can. So the step runs on fake CPU
tensors, and where a card would do something else, that is put in its place, at the level of PyTorch's dispatcher: it holds for
anyone's model, in the forward pass, in recomputation and inside composite operations alike.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.memory import cuda_autocast
from labkit.memory.cuda_attention import CudaAttention
from labkit.techniques import optimizers

_aten = torch.ops.aten


@contextmanager
def cuda_semantics(capability: tuple[int, int]) -> Iterator[CudaAttention]:
    """Inside, CPU operations mean what a card of `capability` makes of them; gives the record of attention kernels.

    It changes the dispatcher for the whole process while it lasts: meant for fake tensors only.
    """
    attention = CudaAttention(capability)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns of any override; these are meant, and end with the block.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid", category=UserWarning)
        library.impl("scaled_dot_product_attention", attention, "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("rms_norm", _rms_norm, "AutogradCPU")
        cuda_autocast.install(library)
    # On a card the optimizers of labkit.techniques work on whole tensors, not on pieces for a CPU's cache.
    whole = mock.patch.object(optimizers, "_PIECE", sys.maxsize)
    try:
        with whole:
            yield attention
    finally:
        library._destroy()


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """CUDA's dropout keeps a mask of one byte an element (aten/src/ATen/native/Dropout.cpp)."""
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype)
    return _aten.native_dropout(tensor, p, True)[0]


class _FusedRMSNorm(torch.autograd.Function):
    """What CUDA's fused RMSNorm keeps: its input and one fp32 number a row (ATen/native/cuda/layer_norm_kernel.cu)."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor | None, dims: int) -> Tensor:
        scale = torch.empty(x.shape[: x.dim() - dims], dtype=torch.float32)
        context.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """torch's own RMSNorm is one kernel on CUDA where input and weight have one dtype, and several operations elsewhere."""
    if weight is not None and weight.dtype != x.dtype:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(tuple(range(-len(shape), 0)), keepdim=True))
        return (normed * weight).to(x.dtype)
    return _FusedRMSNorm.apply(x, weight, len(shape))


def use_foreach(optimizer: Optimizer | Iterable[Optimizer]) -> None:
    """Make torch's choice for CUDA: an optimizer that was told neither `foreach` nor `fused` takes `foreach`."""
    for each in [optimizer] if hasattr(optimizer, "param_groups") else optimizer:  # type: ignore[union-attr]
        for group in each.param_groups:
            if group.get("foreach", ...) is None and not group.get("fused") and not group.get("differentiable"):
                group["foreach"] = True


@contextmanager
def always_steps() -> Iterator[None]:
    """Inside, a GradScaler steps the optimizer without asking whether the (fake) gradients are finite."""

    def step(scaler: Any, optimizer: Optimizer, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    with mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", step):
        yield
