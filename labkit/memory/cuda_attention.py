"""Which kernel `scaled_dot_product_attention` takes on a CUDA card, and why.

Three kernels do the same arithmetic. *Flash* and *memory-efficient* never hold the S x S matrix of scores; *math* does, in
fp32.
The rules are those of `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, in their order of preference. cuDNN's kernel,
which
torch 2.13 prefers on no card unless asked to, is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["flash", "efficient", "math"]


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The kernel that one attention call takes: `reason` says in words what rules the better ones out."""

    backend: Backend
    reason: str
    #: Query's (batch, heads, queries, head size) and the number of keys, of the first such call.
    shape: tuple[int, ...]
    #: Bytes of one S x S matrix in fp32, which only the math kernel holds.
    scores_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What the choice depends on."""

    dtype: torch.dtype
    heads: int
    key_heads: int
    head_size: int
    value_size: int
    queries: int
    keys: int
    mask: bool
    causal: bool
    dropout: bool
    requires_grad: bool
    #: Whether query, key and value are contiguous in their last dimension.
    dense_rows: bool
    enable_gqa: bool = False
    #: The card's compute capability.
    capability: tuple[int, int] = (8, 0)


def choose_backend(call: AttentionCall) -> tuple[Backend, str]:
    """The kernel for `call` and, for any but flash, what rules out the ones before it."""
    against_flash = _against_flash(call)
    if not against_flash:
        return "flash", "half precision and no mask"
    against_efficient = _against_efficient(call)
    if not against_efficient:
        return "efficient", f"flash attention {against_flash}"
    return "math", f"flash attention {against_flash}, and memory-efficient attention {against_efficient}"


def _against_flash(call: AttentionCall) -> str:
    if not torch.backends.cuda.flash_sdp_enabled():
        return "is switched off"
    if call.capability < (8, 0):
        return f"needs an Ampere card or newer (sm_80), not sm_{call.capability[0]}{call.capability[1]}"
    if call.mask:
        return "takes no mask"
    if call.dtype not in (torch.float16, torch.bfloat16):
        return f"needs fp16 or bf16, not {_name(call.dtype)}"
    if call.head_size > 256 or call.head_size != call.value_size:
        return f"takes equal head sizes up to 256, not {call.head_size} and {call.value_size}"
    if call.requires_grad and call.capability in ((8, 6), (8, 9), (12, 0)) and _wide_head(call):
        return f"cannot train head size {call.head_size} on this card"
    if call.causal and call.queries != call.keys:
        return "takes the causal flag only for as many queries as keys"
    return _common(call, gqa=True)


def _against_efficient(call: AttentionCall) -> str:
    if not torch.backends.cuda.mem_efficient_sdp_enabled():
        return "is switched off"
    widths = (torch.float32, torch.float16) + ((torch.bfloat16,) if call.capability >= (8, 0) else ())
    if call.dtype not in widths:
        return f"does not take {_name(call.dtype)} on this card"
    multiple = 4 if call.dtype == torch.float32 else 8
    if call.head_size % multiple or call.value_size % multiple:
        return f"needs a head size that is a multiple of {multiple}, not {call.head_size}"
    return _common(call, gqa=False)


def _common(call: AttentionCall, *, gqa: bool) -> str:
    if call.heads != call.key_heads and not (gqa and call.enable_gqa):
        return "has no grouped-query form" if call.enable_gqa else "needs as many key heads as query heads"
    if not call.dense_rows:
        return "needs rows that are contiguous in memory"
    if 0 in (call.queries, call.keys):
        return "takes no empty sequence"
    return ""


def _wide_head(call: AttentionCall) -> bool:
    return 192 < call.head_size <= 224 or (call.head_size > 224 and call.dropout)


def _name(dtype: torch.dtype) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(str(dtype)[6:], str(dtype)[6:])


class CudaAttention:
    """`aten::scaled_dot_product_attention` as a card runs it; `choices` lists the kernels taken, each kind of call once."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.choices: dict[tuple[str, str], AttentionChoice] = {}
        #: Tells the number that the next storage gets; a tracker sets it.
        self.count: Callable[[], int] = lambda: 0
        #: Numbers of the storages that the math kernel made, other than its result.
        self.math_storages: set[int] = set()

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The attention output, computed by the ops of the kernel that CUDA would choose."""
        aten = torch.ops.aten
        backend = self._choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # torch turns a boolean mask into one to add before any kernel sees it.
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        if backend == "flash":
            return self._flash(query, key, value, dropout_p, is_causal, scale)
        if backend == "efficient":
            bias = None if attn_mask is None else self._bias(attn_mask, query, key)
            needs_sum = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            op = aten._scaled_dot_product_efficient_attention
            return op(query, key, value, bias, needs_sum, dropout_p, is_causal, scale=scale)[0]
        op = aten._scaled_dot_product_attention_math
        first = self.count()
        out = op(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
        self.math_storages.update(range(first, self.count() - 1))
        return out

    def _choose(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool
    ) -> Backend:
        if query.dim() != 4 or key.dim() != 4:
            return self._record("math", "the fused kernels take 4 dimensions (batch, heads, sequence, head size)", query, key)
        call = AttentionCall(
            dtype=query.dtype,
            heads=query.shape[1],
            key_heads=key.shape[1],
            head_size=query.shape[3],
            value_size=value.shape[3],
            queries=query.shape[2],
            keys=key.shape[2],
            mask=mask is not None,
            causal=causal,
            dropout=dropout > 0,
            requires_grad=query.requires_grad,
            dense_rows=all(tensor.stride(-1) == 1 for tensor in (query, key, value)),
            enable_gqa=gqa,
            capability=self.capability,
        )
        return self._record(*choose_backend(call), query, key)

    def _record(self, backend: Backend, reason: str, query: Tensor, key: Tensor) -> Backend:
        shape = (*query.shape, key.shape[-2])
        scores = 4 * query.shape[:-1].numel() * key.shape[-2]
        self.choices.setdefault((backend, reason), AttentionChoice(backend, reason, shape, scores))
        return backend

    @staticmethod
    def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
        size = query.shape[-1]
        scale = size**-0.5 if scale is None else scale
        if size % 8:
            query, key, value = (torch.nn.functional.pad(t, (0, 8 - size % 8)) for t in (query, key, value))
        op = torch.ops.aten._scaled_dot_product_flash_attention
        return op(query, key, value, dropout, causal, False, scale=scale)[0][..., :size]

    @staticmethod
    def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The mask as the kernel wants it: rows padded to a multiple of 16 elements, then expanded without a copy."""
        short = -mask.shape[-1] % 16
        if short:
            mask = torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]]
        return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
