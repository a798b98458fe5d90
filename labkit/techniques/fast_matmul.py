"""Low-precision matrix products on an ordinary CPU, done the way a tensor core does them.

A tensor core multiplies bf16 or fp16 inputs, sums the products in fp32 and rounds once. A CPU without such units falls
to a reference kernel some hundred times slower than its fp32 one. `fast_matmul` takes the same road as the tensor
core: widen the inputs to fp32 (exact), run the fp32 product, round the result once. Tensors keep their dtype, so the
bytes a model holds do not change; only the kernel has fp32 temporaries while it runs.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

#: CPU features that multiply matrices of a dtype directly, as `torch.cpu.get_capabilities` names them.
NATIVE_FEATURES: dict[torch.dtype, tuple[str, ...]] = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16"),
}
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"

_lock = threading.RLock()
_depth = 0
_library: torch.library.Library | None = None


def is_native(dtype: torch.dtype) -> bool:
    """Whether this CPU, with the installed torch, multiplies matrices of `dtype` in units of its own."""
    if dtype not in NATIVE_FEATURES:
        return True
    # torch's low-precision products are oneDNN's; without it the units are there and unused.
    if not torch.backends.mkldnn.is_available():
        return False
    # Older releases cannot be asked; the override is right there too, only perhaps not the fastest.
    features = getattr(torch.cpu, "get_capabilities", dict)()
    return any(features.get(name, False) for name in NATIVE_FEATURES[dtype])


@contextmanager
def fast_matmul(enabled: bool = True) -> Iterator[None]:
    """Inside, bf16 and fp16 products on the CPU are the fp32 product rounded once; stock kernels return on exit.

    Covers mm, addmm, bmm, baddbmm (and with them linear, matmul and einsum) and the fused attention, forward and
    backward; convolutions stay stock. Other dtypes go to the stock kernel and give the same bits. Dtypes that the CPU
    multiplies natively, and other devices, are left alone. Backward has to run inside too, or it takes stock kernels.

    May be nested; `enabled=False` changes nothing, inside another one neither. It is process-wide while it lasts, so it
    holds in other threads too.
    """
    if not enabled:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _exit()


def _enter() -> None:
    global _depth, _library
    with _lock:
        if _depth == 0:
            slow = frozenset(dtype for dtype in NATIVE_FEATURES if not is_native(dtype))
            _library = _override(slow) if slow else None
        _depth += 1


def _exit() -> None:
    global _depth, _library
    with _lock:
        _depth -= 1
        if _depth == 0 and _library is not None:
            _library._destroy()
            _library = None


def _override(slow: frozenset[torch.dtype]) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    kernels = {name: _product(name, slow) for name in _PRODUCTS}
    kernels[_ATTENTION] = _attention(slow)
    kernels[_ATTENTION + "_backward"] = _attention_backward(slow)
    with warnings.catch_warnings():
        # torch warns of any override; this one is meant.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid", category=UserWarning)
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU", with_keyset=True)
    return library


def _product(name: str, slow: frozenset[torch.dtype]) -> Callable[..., Tensor]:
    """A kernel for a product: tensors of one dtype in, one tensor of that dtype out."""
    stock = torch.library.get_kernel(f"aten::{name}", "CPU")

    def kernel(keyset: Any, *args: Tensor, **kwargs: Any) -> Tensor:
        dtype = args[0].dtype
        # A product of unlike dtypes is an error, and the stock kernel's to report.
        if dtype not in slow or any(arg.dtype != dtype for arg in args):
            return stock.call_boxed(keyset, *args, **kwargs)
        return stock.call_boxed(keyset, *[arg.float() for arg in args], **kwargs).to(dtype)

    return kernel


def _attention(slow: frozenset[torch.dtype]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The fused attention forward; its second result, the log-sum-exp, stays fp32 as in the stock kernel."""
    stock = torch.library.get_kernel(f"aten::{_ATTENTION}", "CPU")

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        dtype = args[0].dtype
        if dtype not in slow:
            return stock.call_boxed(keyset, *args, **kwargs)
        output, logsumexp = stock.call_boxed(keyset, *_widen(args, dtype), **_widen_named(kwargs, dtype))
        return output.to(dtype), logsumexp

    return kernel


def _attention_backward(slow: frozenset[torch.dtype]) -> Callable[..., tuple[Tensor, ...]]:
    """The fused attention backward: the gradients of query, key and value, each rounded once."""
    stock = torch.library.get_kernel(f"aten::{_ATTENTION}_backward", "CPU")

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        dtype = args[0].dtype
        if dtype not in slow:
            return stock.call_boxed(keyset, *args, **kwargs)
        gradients = stock.call_boxed(keyset, *_widen(args, dtype), **_widen_named(kwargs, dtype))
        return tuple(gradient.to(dtype) for gradient in gradients)

    return kernel


def _widen(args: Iterable[Any], dtype: torch.dtype) -> list[Any]:
    """`args` with the tensors of `dtype` in fp32, which holds every bf16 and fp16 number exactly."""
    return [arg.float() if isinstance(arg, Tensor) and arg.dtype == dtype else arg for arg in args]


def _widen_named(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return dict(zip(kwargs, _widen(kwargs.values(), dtype), strict=True)) if kwargs else kwargs
