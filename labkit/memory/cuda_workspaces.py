"""Memory that CUDA kernels take inside themselves, where no tracker of tensors can see it.

Each rule here is one that PyTorch's source states; the file is named beside it. Sizes are bytes.
"""

import weakref
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.memory.allocator import KIB, round_up
from labkit.memory.tracker import Tracker
from labkit.techniques.checkpointing import moving_to_host

#: What fake tensors raise at an operation whose result depends on values.
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default

# An operation of our own stands for hidden memory, so that it has a name in every record.
_library = torch.library.Library("labkit", "FRAGMENT")
for _kind in ("cublas_workspace", "kernel_workspace", "rnn_reserve"):
    _library.define(f"{_kind}(SymInt nbytes, *, Device? device=None) -> Tensor")
    _library.impl(
        _kind, lambda nbytes, device=None: torch.empty(nbytes, dtype=torch.uint8, device=device), "CompositeExplicitAutograd"
    )

#: Names of the operations that stand for hidden memory, as they appear in events.
HIDDEN_OPS = ("labkit.cublas_workspace", "labkit.kernel_workspace", "labkit.rnn_reserve")

_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.addmv.default}


def cublas_workspace(capability: tuple[int, int]) -> int:
    """cuBLAS's scratch for one handle on one stream: ":4096:2:16:8", on Hopper ":4096:8" (ATen/cuda/CublasHandlePool.cpp).

    Each thread has a handle of its own, so a training step holds two: the one of the caller and the one of autograd's thread.
    cuBLASLt shares it since torch 2.7.
    """
    return 8 * 4096 * KIB if capability[0] == 9 else 2 * 4096 * KIB + 8 * 16 * KIB


def flash_backward(query: Tensor, key: Tensor) -> int:
    """FlashAttention-2's backward: an fp32 accumulator of dq, softmax's row sums, and dk, dv before heads are summed.

    `query` and `key` are (batch, heads, sequence, head size) (flash_attn/flash_api.cpp, mha_bwd).
    """
    batch, heads, queries, size = query.shape
    rows = round_up(queries, 128)
    width = round_up(size, 32 if size <= 128 else 64)
    expanded = 0
    if key.shape[1] != heads:
        expanded = 2 * batch * key.shape[2] * heads * round_up(size, 8) * key.element_size()
    return 4 * batch * heads * rows * width + 4 * batch * heads * rows + expanded


def efficient_backward(query: Tensor) -> int:
    """Memory-efficient attention's backward: blocks of fp32 dq with their locks, and the row sums "delta".

    Blocks are 64 x 64, with 16 bytes of lock each (mem_eff_attention/kernel_backward.h, GradQTempStorage).
    """
    batch, heads, queries, size = query.shape
    blocks = -(-queries // 64) * -(-size // 64)
    return batch * heads * (blocks * (4 * 64 * 64 + 16) + 4 * queries)


def safe_softmax(scores: Tensor) -> int:
    """The plain softmax before fully masked rows are zeroed, and the mask of them (ATen/native/transformers/attention.cpp)."""
    return scores.numel() * (scores.element_size() + 1)


def embedding_backward(indices: Tensor) -> int:
    """Indices and their positions, sorted, to sum a dense gradient without atomics (ATen/native/cuda/Embedding.cu)."""
    return 4 * indices.numel() * indices.element_size()


#: What each kernel takes for as long as it runs.
TRANSIENT: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: lambda grad, query, key, *rest: flash_backward(query, key),
    _aten._scaled_dot_product_efficient_attention_backward.default: lambda grad, query, *rest: efficient_backward(query),
    _aten._safe_softmax.default: lambda scores, *rest: safe_softmax(scores),
    _aten.embedding_dense_backward.default: lambda grad, indices, *rest: embedding_backward(indices),
}


class HiddenMemory(TorchDispatchMode):
    """Adds kernels' hidden memory to a step on fake tensors that `tracker` follows, as tensors that live exactly as long.

    Enter it inside the tracker. It also answers the questions that fake tensors cannot (`.item()`), and notes what had to be
    assumed. `capability` None stands for a CPU, whose kernels are measured, not modelled.
    """

    def __init__(self, tracker: Tracker, capability: tuple[int, int] | None) -> None:
        super().__init__()
        self.capability = capability
        self.tracker = tracker
        #: The tracker's numbers of storages that are on the host though their fake tensors say nothing of it.
        self.host: set[int] = set()
        #: Plain words on what had to be assumed.
        self.notes: list[str] = []
        #: The module that was running when an operation could not be predicted.
        self.failed_in = ""
        self._handles: dict[bool, Tensor] = {}
        self._reserves: list[tuple[Any, Tensor]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            # Asked thousands of times a step; passing it down through every mode costs more than the rest.
            return getattr(args[0], "fake_device", None) or func(*args)
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            return self._answer(args[0])
        try:
            return self._run(func, args, kwargs)
        except UNKNOWN:
            self.failed_in = self.failed_in or self.tracker._modules[-1]
            raise

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.capability is None:
            out = func(*args, **kwargs)
            return _with_workspace(out, func, args) if func is _aten.mkldnn_rnn_layer.default else out
        if func in _PRODUCTS:
            self._hold_handle()
        rule = TRANSIENT.get(func)
        scratch = torch.ops.labkit.kernel_workspace(rule(*args)) if rule else None
        out = func(*args, **kwargs)
        del scratch
        if func is _aten.mkldnn_rnn_layer.default:
            self._reserve(out)
        elif func is _aten.convolution.default:
            self._note("cuDNN picks a convolution's workspace on the card; it is not counted")
        elif moving_to_host() and isinstance(out, Tensor):
            self.on_host(out)
        return out

    def on_host(self, tensor: Tensor) -> None:
        """Count the storage of `tensor` to the host."""
        known = self.tracker._live.get(tensor.untyped_storage()._cdata)
        if known is not None:
            self.host.add(known.id)

    def step_counters_on_host(self) -> None:
        """torch's optimizers count their steps on the host unless they are fused or capturable."""
        for optimizer in self.tracker.optimizers:
            for group in optimizer.param_groups:
                if group.get("fused") or group.get("capturable"):
                    continue
                for parameter in group["params"]:
                    counter = optimizer.state[parameter].get("step") if parameter in optimizer.state else None
                    if isinstance(counter, Tensor):
                        self.on_host(counter)

    def forget(self) -> None:
        """Drop what lives beyond a step, so that nothing outlasts the record."""
        self._handles.clear()
        self._reserves.clear()

    def _hold_handle(self) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward not in self._handles:
            self._handles[in_backward] = torch.ops.labkit.cublas_workspace(cublas_workspace(self.capability or (8, 0)))

    def _reserve(self, out: Any) -> None:
        """cuDNN keeps gates and cell states of every step for backward: about 6 values a hidden unit and step."""
        if out[0].requires_grad or torch.is_grad_enabled():
            nbytes = 6 * prod(out[0].shape) * out[0].element_size()
            self._reserves = [(ref, held) for ref, held in self._reserves if ref() is not None]
            self._reserves.append((_weak_storage(out[0]), torch.ops.labkit.rnn_reserve(nbytes)))
            self._note(
                "cuDNN's recurrent layers keep a reserve for backward that only the card knows; 6 values a unit are assumed"
            )

    def _answer(self, tensor: Tensor) -> bool | int | float:
        inside = self.tracker._modules[-1]
        if inside and torch._C._current_graph_task_id() == -1:
            self._note(f"module {inside} reads a tensor's value (.item(), bool() or a branch); 1 is assumed")
        return {torch.bool: True}.get(tensor.dtype, 1.0 if tensor.is_floating_point() else 1)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@cache
def _rnn_workspace(shapes: tuple[torch.Size, ...], rest: tuple[Any, ...]) -> int:
    """The bytes that oneDNN's recurrent layer keeps for backward on this CPU: asked of the layer itself, on zeros."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.enable_grad():
        tensors = iter([torch.zeros(shape) for shape in shapes])
        args = [next(tensors) if value is Tensor else list(value) if isinstance(value, tuple) else value for value in rest]
        return int(_aten.mkldnn_rnn_layer.default(*args)[3].untyped_storage().nbytes())


def _with_workspace(out: Any, func: Any, args: Any) -> Any:
    if not args[-1]:  # not in training: nothing is kept
        return out
    shapes = tuple(value.shape for value in args if isinstance(value, Tensor))
    rest = tuple(Tensor if isinstance(v, Tensor) else tuple(v) if isinstance(v, list) else v for v in args)
    return (*out[:3], torch.empty(_rnn_workspace(shapes, rest), dtype=torch.uint8))


def _weak_storage(tensor: Tensor) -> Any:
    return weakref.ref(tensor.untyped_storage())
