"""Remember what shapes an operation gives for what shapes, so that a repeated layer costs next to nothing to trace.

FakeTensorMode works each operation out anew, in about 0.3 ms; a model repeats the same few dozen many thousand times. This mode
stands in front of it: an operation seen before, on tensors of the same shapes, gets its results' shapes from memory. Anything
out of the ordinary (constants, results that share storage, resizing, complex numbers) is passed on.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import TorchDispatchMode

_LIMIT = 100_000


class _Fresh(NamedTuple):
    """A result in memory of its own."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class _View(NamedTuple):
    """A result that looks at the storage of the argument with this number."""

    argument: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class _Same(NamedTuple):
    """A result that is the argument with this number."""

    argument: int


_Result = _Fresh | _View | _Same | None
#: None stands for "always ask"; otherwise the results and whether the op returns one tensor, a tuple or a list.
_KNOWN: dict[Any, tuple[tuple[_Result, ...], type | None] | None] = {}
_SKIPPED: dict[Any, bool] = {}


class _Uncached(Exception):
    """An argument or a result that this cache leaves alone."""


class ShapeCache(TorchDispatchMode):
    """Enter it inside a FakeTensorMode; results are the mode's own."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        skipped = _SKIPPED.get(func)
        if skipped is None:
            skipped = _SKIPPED[func] = _is_special(func)
        if skipped:
            return func(*args, **kwargs)
        tensors: list[FakeTensor] = []
        try:
            key = (func, *_keys(args, tensors), *_keys(tuple(kwargs.items()), tensors))
            if not tensors:
                key = (*key, torch.get_default_dtype())
            known = _KNOWN.get(key, ...)
        except (_Uncached, TypeError):
            return func(*args, **kwargs)
        if known is None:
            return func(*args, **kwargs)
        if known is ...:
            out = func(*args, **kwargs)
            if len(_KNOWN) > _LIMIT:
                _KNOWN.clear()
            _KNOWN[key] = _described(out, tensors)
            return out
        results, kind = known
        made = [self._make(result, tensors) for result in results]
        return made[0] if kind is None else kind(made)

    def _make(self, result: _Result, tensors: list[FakeTensor]) -> Any:
        if result is None:
            return None
        if isinstance(result, _Same):
            return tensors[result.argument]
        if isinstance(result, _Fresh):
            with torch._C._DisableTorchDispatch():
                meta = torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="meta")
            return FakeTensor(self.mode, meta, _CPU)
        base = tensors[result.argument]
        storage = base.untyped_storage()
        with in_kernel_invocation_manager(self.mode):
            meta = torch.empty(0, dtype=result.dtype, device="meta")
            meta.set_(storage, result.offset, result.shape, result.stride)
        return FakeTensor(self.mode, meta, _CPU)


_CPU = torch.device("cpu")


def _is_special(func: Any) -> bool:
    """Whether an op resizes, changes its argument's shape, writes to `out`, asks for values, or is not an aten op."""
    name = func._schema.name
    return (
        not name.startswith("aten::")
        or torch.Tag.inplace_view in func.tags
        or torch.Tag.data_dependent_output in func.tags
        or torch.Tag.dynamic_output_shape in func.tags
        or any(argument.is_out for argument in func._schema.arguments)
        or name
        in ("aten::lift_fresh", "aten::lift", "aten::resize_", "aten::resize_as_", "aten::set_", "aten::_resize_output_")
    )


def _keys(values: Any, tensors: list[FakeTensor]) -> Iterator[Any]:
    """What of the arguments decides the results' shapes; the tensors among them are appended to `tensors`."""
    for value in values:
        if isinstance(value, Tensor):
            if (
                type(value) is not FakeTensor
                or value.constant is not None
                or value.is_complex()
                or value.layout != torch.strided
            ):
                raise _Uncached
            tensors.append(value)
            yield (value.dtype, value.shape, value.stride(), value.storage_offset())
        elif isinstance(value, tuple | list):
            yield (type(value), *_keys(value, tensors))
        else:
            yield (type(value), value)  # the type too: 1 == 1.0 == True, but they promote differently


def _described(out: Any, tensors: list[FakeTensor]) -> tuple[tuple[_Result, ...], type | None] | None:
    kind = type(out) if type(out) in (tuple, list) else None
    values = out if kind else (out,)
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    seen: set[int] = set()
    results = []
    for value in values:
        try:
            results.append(_result(value, tensors, storages, seen))
        except _Uncached:
            return None
    return tuple(results), kind


def _result(value: Any, tensors: list[FakeTensor], storages: list[int], seen: set[int]) -> _Result:
    if value is None:
        return None
    if type(value) is not FakeTensor or value.constant is not None or value.device != _CPU or value.layout != torch.strided:
        raise _Uncached
    for number, tensor in enumerate(tensors):
        if value is tensor:
            return _Same(number)
    storage = value.untyped_storage()
    if storage._cdata in storages:
        number = storages.index(storage._cdata)
        return _View(number, value.shape, value.stride(), value.storage_offset(), value.dtype)
    with torch._C._DisableTorchDispatch():
        twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if storage._cdata in seen or value.storage_offset() or twin.untyped_storage().nbytes() != storage.nbytes():
        raise _Uncached
    seen.add(storage._cdata)
    return _Fresh(value.shape, value.stride(), value.dtype)
