"""CUDA's autocast rules, put in force for tensors on the CPU: which operations run in fp32 there.

Autocast keeps one list of operations for each device. The low-precision lists agree (matrix products, convolutions, attention);
the fp32 lists do not: on CUDA layer norm, softmax, sums and the loss run in fp32, on the CPU only the loss does. The lists are
those of PyTorch's note "Automatic Mixed Precision: CUDA ops that autocast to float32" (`aten/src/ATen/autocast_mode.h`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten

#: Operations that get their low-precision arguments in fp32.
FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "frobenius_norm.dim",
    "nuclear_norm",
]

#: Operations that take a `dtype` argument: it is set to fp32 where the caller gave none.
FP32_BY_DTYPE = [
    "prod",
    "prod.dim_int",
    "cumprod",
    "cumsum",
    "sum",
    "sum.dim_IntList",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
]

_LOW = (torch.float16, torch.bfloat16)
_CPU_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def install(library: torch.library.Library) -> None:
    """Register CUDA's fp32 rules with `library` (aten, "IMPL") for the CPU's autocast; they last as long as it does."""
    for name in FP32:
        _register(library, name, _in_fp32(_overload(name)))
    for name in FP32_BY_DTYPE:
        _register(library, name, _with_dtype(_overload(name)))
    _register(library, "softmax.int", _softmax(_aten._softmax.default, _aten.softmax.int))
    _register(library, "log_softmax.int", _softmax(_aten._log_softmax.default, _aten.log_softmax.int))
    _register(library, "cross_entropy_loss", _cross_entropy)


def _register(library: torch.library.Library, name: str, kernel: Callable[..., Any]) -> None:
    def outside_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_CPU_AUTOCAST):
            return kernel(*args, **kwargs)

    library.impl(name, outside_autocast, "AutocastCPU")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _in_fp32(op: Any) -> Callable[..., Any]:
    def widen(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in _LOW else tensor

    return lambda *args, **kwargs: op(*tree_map_only(Tensor, widen, args), **tree_map_only(Tensor, widen, kwargs))


def _with_dtype(op: Any) -> Callable[..., Any]:
    position = [argument.name for argument in op._schema.arguments].index("dtype")

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        unset = kwargs.get("dtype") is None and len(args) < position
        if unset and tensor.dtype in _LOW:
            kwargs["dtype"] = torch.float32
        return op(tensor, *args, **kwargs)

    return kernel


def _softmax(fused: Any, op: Any) -> Callable[..., Any]:
    """Softmax or log-softmax of low-precision input with an fp32 result; from fp16 one kernel reads and widens at once."""

    def kernel(tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if dtype is None and tensor.dtype in _LOW:
            dtype = torch.float32
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return fused(tensor, dim, True)
        return op(tensor, dim, dtype)

    return kernel


def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """CUDA has no rule for the loss as a whole: its log-softmax widens the logits, and the widened copy is gone at once."""
    if label_smoothing or target.is_floating_point():
        return _aten.cross_entropy_loss(_widened(logits), target, weight, reduction, ignore_index, label_smoothing)
    dim = 0 if logits.dim() == 1 else 1
    scores = _softmax(_aten._log_softmax.default, _aten.log_softmax.int)(logits, dim)
    return _aten.nll_loss_nd(scores, target, weight, reduction, ignore_index)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _LOW else tensor
