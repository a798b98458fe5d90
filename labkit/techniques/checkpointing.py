"""Activation checkpointing of any chain of blocks: keep less in the forward pass, compute it again in the backward.

A policy says which blocks are recomputed and how: `none`, `full` (each block), `every:K` (K blocks a segment), `sqrt`
(segments of about the square root of the number of blocks), `selective` (products are kept, the rest recomputed),
`offload` (everything is kept, on the host), or an explicit placement. Blocks stay where they are in the model, with
their names and parameters; only their `forward` is replaced while the policy lasts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from math import ceil, sqrt
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

#: A policy's name, the set of blocks to recompute one by one, or the segments to recompute, each a run of indices.
Policy = str | set[int] | frozenset[int] | Sequence[Sequence[int]]
NAMES = ("none", "full", "every:K", "sqrt", "selective", "offload")

_aten = torch.ops.aten
#: What `selective` keeps: matrix products and fused attention, dear to compute and small beside what they need again.
KEPT_OPS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)


class Checkpointing:
    """A policy in force on a model; `remove()`, or leaving it as a context, gives the blocks their own forward back."""

    def __init__(self, policy: Policy, segments: list[list[int]], blocks: Sequence[nn.Module]) -> None:
        self.policy = policy
        #: Indices of the blocks that share one checkpoint, in order; empty where nothing is recomputed.
        self.segments = segments
        self._blocks = blocks
        self._patched: list[nn.Module] = []

    def remove(self) -> None:
        """Give every block its own forward back; a second call does nothing."""
        for block in self._patched:
            del block.forward
        self._patched.clear()

    def __enter__(self) -> "Checkpointing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def _patch(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        if "forward" in vars(block):
            self.remove()
            raise ValueError(f"a block ({type(block).__name__}) has a replaced forward already; remove() the old policy first")
        block.forward = forward
        self._patched.append(block)


def apply_checkpointing(model: nn.Module, blocks: Sequence[nn.Module], policy: Policy = "full") -> Checkpointing:
    """Put `policy` in force on `blocks`, modules of `model` in the order in which it calls them.

    `policy` is a name (see `NAMES`), a set of block indices to recompute one by one, or a list of segments, each a run
    of neighbouring indices recomputed together. Blocks may take further arguments. A segment of several blocks needs a
    chain: each block gets the output of the one before as its first argument and the same further arguments. Where the
    model does not do that, its forward raises RuntimeError saying so.

    Raises ValueError for an unknown policy, an index out of range, overlapping segments, or a model without blocks.
    """
    segments = plan_segments(policy, len(blocks))
    if policy != "none" and not blocks:
        raise ValueError(
            f"checkpointing {policy!r} needs blocks, and {type(model).__name__} has none; name them in the workload"
        )
    handle = Checkpointing(policy, segments, blocks)
    if policy == "offload":
        for block in blocks:
            handle._patch(block, _offloaded(block))
    recompute = _selectively if policy == "selective" else _wholly
    for indices in segments:
        segment = _Segment([blocks[index] for index in indices], indices, recompute)
        for position, block in enumerate(segment.blocks):
            handle._patch(block, segment.forward_at(position))
    return handle


def parse_policy(text: str) -> tuple[str, int | None]:
    """The name and the K of a policy's text ("every:4" is ("every", 4)); raises ValueError listing what is allowed."""
    name, colon, size = text.partition(":")
    if name == "every" and size.isascii() and size.isdigit() and int(size) > 0:
        return name, int(size)
    if colon or text not in NAMES:
        raise ValueError(f"checkpointing {text!r} is not one of: {', '.join(NAMES)} (K a whole number from 1)")
    return name, None


def plan_segments(policy: Policy, total: int) -> list[list[int]]:
    """Which of `total` blocks a policy recomputes, as runs of indices that share one checkpoint.

    Raises ValueError as `apply_checkpointing` does.
    """
    if isinstance(policy, str):
        name, size = parse_policy(policy)
        if name in ("none", "offload"):
            return []
        length = size or (ceil(sqrt(total)) if name == "sqrt" else 1)
        return [list(range(start, min(start + length, total))) for start in range(0, total, max(length, 1))]
    if isinstance(policy, set | frozenset):
        segments = [[index] for index in sorted(policy)]
    else:
        segments = [list(segment) for segment in policy]
    _validate(segments, total)
    return segments


def _validate(segments: list[list[int]], count: int) -> None:
    seen: set[int] = set()
    for segment in segments:
        if not segment or segment != list(range(segment[0], segment[0] + len(segment))):
            raise ValueError(f"checkpoint segment {segment} is not a run of neighbouring block indices")
        if segment[0] < 0 or segment[-1] >= count:
            raise ValueError(f"checkpoint segment {segment} reaches outside the {count} blocks (0 to {count - 1})")
        if seen.intersection(segment):
            raise ValueError(f"checkpoint segment {segment} shares a block with another segment")
        seen.update(segment)


class _Segment:
    """Blocks under one checkpoint: the first runs them all, the others hand on what the first has computed."""

    def __init__(self, blocks: list[nn.Module], indices: list[int], recompute: Callable[..., Any]) -> None:
        self.blocks = blocks
        self.indices = indices
        self._recompute = recompute
        self._own = [block.forward for block in blocks]
        self._running = False  # inside the checkpoint blocks run for real
        self._result: Any = None
        self._arguments: tuple[Any, ...] = ()
        self._due = 0  # the position that has to be called next; 0 where no run is under way

    def forward_at(self, position: int) -> Callable[..., Any]:
        return self._first if position == 0 else partial(self._later, position)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._own[0](*args, **kwargs)
        result = self._recompute(self._run, self.blocks, *args, **kwargs)
        if len(self.blocks) > 1:
            self._result, self._arguments, self._due = result, (args[1:], kwargs), 1
        return result

    def _later(self, position: int, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        if self._running or not torch.is_grad_enabled():
            return self._own[position](hidden, *args, **kwargs)
        result = self._result
        if position != self._due or hidden is not _first_of(result):
            raise RuntimeError(
                f"blocks {self.indices[0]} to {self.indices[-1]} share a checkpoint, but block {self.indices[position]} is "
                "not given the output of the block before; use 'full', which needs no chain"
            )
        if not _same((args, kwargs), self._arguments):
            raise RuntimeError(
                f"blocks {self.indices[0]} to {self.indices[-1]} share a checkpoint, but block {self.indices[position]} is "
                "given other arguments than the first; use 'full', which allows it"
            )
        self._due = position + 1
        if self._due == len(self.blocks):
            self._result, self._arguments, self._due = None, (), 0
        return result

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._running = True
        try:
            result = self._own[0](*args, **kwargs)
            for block in self.blocks[1:]:
                # Called as a module, so that hooks on the block see the real run.
                result = block(_first_of(result), *args[1:], **kwargs)
            return result
        finally:
            self._running = False


def _wholly(run: Callable[..., Any], blocks: list[nn.Module], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(_repeatable(run, blocks), *args, use_reentrant=False, **kwargs)


def _selectively(run: Callable[..., Any], blocks: list[nn.Module], *args: Any, **kwargs: Any) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, _keep_products)
    return checkpoint(_repeatable(run, blocks), *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def _repeatable(run: Callable[..., Any], blocks: list[nn.Module]) -> Callable[..., Any]:
    """`run` for a checkpoint: from its second call on, batch norm's running statistics are left as they are."""
    norms = [each for block in blocks for each in block.modules() if isinstance(each, _NormBase) and each.training]
    if not norms:
        return run
    calls = count()
    # Made here, before a selective checkpoint starts to watch: an operation that only one of the two passes has would
    # confuse it.
    spares = [{name: each.clone() for name, each in norm._buffers.items() if each is not None} for norm in norms]

    def run_or_repeat(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if next(calls) == 0 else _exchanged(norms, spares):
            return run(*args, **kwargs)

    return run_or_repeat


@contextmanager
def _exchanged(norms: list[_NormBase], spares: list[dict[str, Tensor]]) -> Iterator[None]:
    """Let `norms` write to `spares` in place of their running statistics: the first pass has updated the real ones."""
    kept = [dict(norm._buffers) for norm in norms]
    try:
        for norm, spare in zip(norms, spares, strict=True):
            norm._buffers.update(spare)
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


def _offloaded(block: nn.Module) -> Callable[..., Any]:
    """The block's forward with what it saves for backward held on the host."""
    own = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _Offload(block, (args, kwargs)):
            return own(*args, **kwargs)

    return forward


class _Offload(saved_tensors_hooks):
    """Moves saved tensors to the host and back; parameters, buffers and shared arguments stay where they are.

    A tensor saved by several operations is moved once, and an expanded one without its repetitions.
    """

    def __init__(self, block: nn.Module, arguments: Any) -> None:
        lasting = [*block.parameters(), *block.buffers()]
        lasting += [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and not leaf.requires_grad]
        self._lasting = {_storage(tensor) for tensor in lasting}
        self._moved: dict[Any, Tensor] = {}
        super().__init__(self._pack, _unpack)

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._moved.clear()

    def _pack(self, tensor: Tensor) -> Tensor | tuple[torch.device, torch.Size, Tensor]:
        if _storage(tensor) in self._lasting:
            return tensor
        key = (_storage(tensor), tensor._version, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._moved:
            self._moved[key] = _to_host(tensor)
        return tensor.device, tensor.shape, self._moved[key]


def _storage(tensor: Tensor) -> StorageWeakRef:
    # A weak reference, held as a key, also keeps the address of a freed storage from being given to another.
    return StorageWeakRef(tensor.untyped_storage())


_moving = False


def moving_to_host() -> bool:
    """Whether `offload` is copying a tensor to the host just now: what is allocated meanwhile is not on the device."""
    return _moving


def _to_host(tensor: Tensor) -> Tensor:
    global _moving
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    once = tensor[tuple(slice(1) if stride == 0 and size else slice(None) for stride, size in sizes)]
    _moving = True
    try:
        # On a CPU the host is the device; the copy is made all the same, so that its cost and its course are seen.
        return torch.empty_like(once, device="cpu", pin_memory=tensor.is_cuda).copy_(once)
    finally:
        _moving = False


def _unpack(packed: Tensor | tuple[torch.device, torch.Size, Tensor]) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    device, shape, host = packed
    return host.to(device, copy=True).expand(shape)


def _first_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) else result


def _same(arguments: Any, others: Any) -> bool:
    """Whether two argument lists hold the same tensors (not equal ones) and equal other values."""
    mine, theirs = tree_leaves(arguments), tree_leaves(others)
    return len(mine) == len(theirs) and all(
        a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)
        for a, b in zip(mine, theirs, strict=True)
    )
