"""Cross-entropy of a language model's head without its logits.

The logits of N tokens over V words are N x V numbers, and the plain loss holds two or three such tensors at its peak:
more than everything else in a checkpointed model. Here the head and the loss run together on a chunk of tokens at a time;
one number a token (the log-sum-exp) is kept, and the backward pass computes each chunk's logits again.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Fewer tokens than this make products too thin to run well.
_FEWEST = 64


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """The loss `F.cross_entropy(F.linear(hidden, weight, bias), targets)`, in nats, a chunk of tokens at a time.

    Shapes: hidden (..., D), weight (V, D), targets (...) of class indices, bias (V). The products run in autocast's dtype
    where autocast is on, in that of the inputs otherwise; soft-max and sums in fp32 (fp64 for fp64). `chunk` is the number
    of tokens at a time; by default a chunk's logits are about as large as `hidden`, so that the peak grows with
    N x D + V x D and not with N x V. The head's product runs twice: 4/3 of its operations.

    Raises ValueError for shapes that do not fit together, a chunk below 1, or another reduction.
    """
    _validate(hidden, weight, targets, chunk, reduction)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        # Cast here, where autograd sees it: the gradients come back in the dtypes of the caller's tensors.
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    flat, labels = hidden.flatten(0, -2), targets.flatten()
    tokens, words = chunk or max(_FEWEST, flat.numel() // weight.shape[0]), labels != ignore_index
    total = _ChunkedLoss.apply(flat, weight, bias, labels.where(words, 0), words, tokens)
    return total / words.sum() if reduction == "mean" else total


def _validate(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int | None, reduction: str) -> None:
    if hidden.dim() < 2 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(f"hidden (..., D) and weight (V, D) must share D, not {tuple(hidden.shape)} and {tuple(weight.shape)}")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(f"targets must have the shape {tuple(hidden.shape[:-1])} of the tokens, not {tuple(targets.shape)}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, not {chunk}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction {reduction!r} is not one of: mean, sum")


class _ChunkedLoss(torch.autograd.Function):
    """The sum over the counted tokens of logsumexp(logits) - logits[target]."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, counted: Tensor, chunk: int
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logsumexp = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)  # (N,)
        loss = logsumexp.new_zeros(())
        for rows in _chunks(hidden.shape[0], chunk):
            logits = _logits(hidden[rows], weight, bias)  # (C, V)
            logsumexp[rows] = logits.logsumexp(-1)
            right = logits.gather(-1, labels[rows, None])[:, 0]  # (C,)
            loss += ((logsumexp[rows] - right) * counted[rows]).sum()
        ctx.save_for_backward(hidden, weight, bias, labels, counted, logsumexp)
        ctx.chunk = chunk
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, counted, logsumexp = ctx.saved_tensors
        needs = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs[0] else None  # (N, D)
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype) if needs[1] else None  # (V, D)
        grad_bias = torch.zeros_like(bias, dtype=logsumexp.dtype) if needs[2] else None  # (V,)
        for rows in _chunks(hidden.shape[0], ctx.chunk):
            share = _logits(hidden[rows], weight, bias).sub_(logsumexp[rows, None]).exp_()  # (C, V)
            share.scatter_add_(-1, labels[rows, None], share.new_full((len(share), 1), -1.0))
            # The incoming gradient carries the loss scale: it has to act before the cast to fp16, not after.
            grad_logits = share.mul_((grad * counted[rows])[:, None]).to(hidden.dtype)  # (C, V)
            del share
            if grad_hidden is not None:
                grad_hidden[rows] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ hidden[rows]
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
        weight_grads = [None if each is None else each.to(weight.dtype) for each in (grad_weight, grad_bias)]
        return grad_hidden, *weight_grads, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _chunks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, total, size))
