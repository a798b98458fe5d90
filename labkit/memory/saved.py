"""What autograd keeps for the backward pass, tensor by tensor: which op of which module kept it, and how large it is."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

COLUMNS = ["module", "op", "shape", "dtype", "bytes", "kind", "shared"]


@dataclass(frozen=True, slots=True)
class _Saved:
    module: str
    #: The number of the autograd node that keeps the tensor; nodes are numbered as they are made.
    node: int
    shape: tuple[int, ...]
    dtype: str
    storage: int
    nbytes: int


def saved_tensors(fn: Callable[[], Any], model: nn.Module | None = None, *, inputs: Any = None) -> pd.DataFrame:
    """Run `fn()`, a forward pass that returns its loss (or any outputs), and list the tensors autograd keeps for backward.

    One row a saved tensor: module, op, shape, dtype, bytes of its storage, kind ("parameter", "input" or "activation") and
    shared: whether an earlier row keeps the same storage, so that `frame[~frame.shared].bytes.sum()` counts each byte once.
    Parameters and buffers are known from `model`, inputs from the nest of tensors `inputs`. Inside a checkpointed region
    nothing is kept, and only the region's own inputs are listed. No backward runs and no gradient is made.

    Raises TypeError where `fn` cannot be called, ValueError where its result has no gradient to follow.
    """
    if not callable(fn):
        raise TypeError(f"saved_tensors needs a function of no arguments that runs the forward pass, not {fn!r}")
    kinds = {key: "input" for key in _storages(inputs)}
    kinds |= {key: "parameter" for key in _storages([*model.parameters(), *model.buffers()] if model else [])}
    modules = _ModuleStack(model)
    saved: list[_Saved] = []
    # Held until the end, so that no address is used twice.
    held: list[torch.UntypedStorage] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held.append(storage)
        node = torch._C._autograd._get_sequence_nr() - 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        saved.append(_Saved(modules.current, node, tuple(tensor.shape), dtype, storage._cdata, storage.nbytes()))
        return tensor

    with modules, saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn()
    names = dict(_nodes(result))
    if not names:
        raise ValueError(f"the forward pass returned {type(result).__name__} without a gradient; return the loss itself")
    return _frame(saved, names, kinds)


def by_module(frame: pd.DataFrame, *, depth: int | None = None, kind: str = "activation") -> pd.Series:
    """Bytes that autograd keeps in each module, each storage once, for rows of one `kind`.

    With `depth`, module names are cut to so many parts: `blocks.0.mlp.up` is `blocks.0` at depth 2.
    """
    kept = frame[(frame["kind"] == kind) & ~frame["shared"]]
    modules = kept["module"] if depth is None else kept["module"].map(lambda name: ".".join(name.split(".")[:depth]))
    return kept.groupby(modules, sort=False)["bytes"].sum()


def _frame(saved: list[_Saved], names: dict[int, str], kinds: dict[int, str]) -> pd.DataFrame:
    seen: set[int] = set()
    rows = []
    for each in saved:
        kind = kinds.get(each.storage, "activation")
        op = names.get(each.node, "")
        rows.append([each.module, op, each.shape, each.dtype, each.nbytes, kind, each.storage in seen])
        seen.add(each.storage)
    return pd.DataFrame(rows, columns=COLUMNS)


def _storages(nest: Any) -> Iterator[int]:
    return (leaf.untyped_storage()._cdata for leaf in tree_leaves(nest) if isinstance(leaf, Tensor))


def _nodes(result: Any) -> Iterator[tuple[int, str]]:
    """Number and op of every autograd node behind `result`."""
    todo = [leaf.grad_fn for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node._sequence_nr(), _op_name(node.name())
        following = [each for each, _ in node.next_functions if each is not None and each not in seen]
        seen.update(following)
        todo.extend(following)


def _op_name(node: str) -> str:
    """`AddmmBackward0` to `addmm`, `NativeLayerNormBackward0` to `native_layer_norm`."""
    plain = re.sub(r"Backward\d*$", "", node.split("::")[-1])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()


class _ModuleStack:
    """Which module runs forward now, by its dotted name in the model; a context that installs the hooks to know."""

    def __init__(self, model: nn.Module | None) -> None:
        self._names = {module: name for name, module in model.named_modules()} if model is not None else {}
        self._stack = [""]
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> "_ModuleStack":
        self._handles = [
            register_module_forward_pre_hook(lambda module, args: self._stack.append(self._name(module))),
            register_module_forward_hook(lambda module, args, output: self._pop(), always_call=True),
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _name(self, module: nn.Module) -> str:
        return self._names.get(module) or type(module).__name__

    def _pop(self) -> None:
        self._stack.pop()
