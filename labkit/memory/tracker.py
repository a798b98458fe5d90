"""Follow every tensor storage of a training step: when it is made, when it is freed, by which op, in which module, and why.

The tracker is a dispatch mode: each tensor operation passes through it, so the same code counts a real step on a CPU or a
GPU and a pretended one under `FakeTensorMode`. It learns of frees from weak references to storages, so it never keeps
memory alive. What a kernel allocates inside itself is invisible to it; `labkit.memory.measure` says how much that is. A
storage resized behind its tensors' back (`untyped_storage().resize_`, as FSDP does) keeps the size it had.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

#: What memory is for. Buffers count as parameters; activations are what the forward pass keeps for the backward pass.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries", "inputs")
#: The parts of a step; "before" marks what was there when tracking began.
PHASES = ("before", "forward", "recompute", "backward", "optimizer")

_graph_task = torch._C._current_graph_task_id
_autograd_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr


class Event(NamedTuple):
    """One change of the live bytes."""

    kind: Literal["alloc", "free"]
    #: Numbers storages in the order of their birth; a storage that is resized gets a new number.
    storage: int
    #: The storage's size, positive for both kinds.
    nbytes: int
    category: str
    phase: str
    #: The op that allocated, or the last op that began before the free; empty before the first one.
    op: str
    #: Dotted name of the module (the class name for the root, and for modules outside the model); empty outside any.
    module: str
    device: torch.device


class _Storage(weakref.ref):
    """A weak reference to a storage that knows its number, its size and its address."""

    __slots__ = ("id", "key", "nbytes")


class Tracker(TorchDispatchMode):
    """Record the storages that come and go inside a `with` block, by category, phase, op and module.

    `model` and `optimizer` say which storages are parameters, gradients and optimizer state, and name the modules; `inputs` is
    any nest of tensors that exists beforehand, `storages` weak references to storages that do. Phases are found without the
    step's help: inside autograd's engine is backward, a forward that runs in there is recompute, inside `Optimizer.step` is
    optimizer. Activations are what a forward (or a recompute) made and backward found still alive.

    With `find_inputs=True` the arguments of every op are looked at too, and `found` then holds the storages that the
    step read though nobody declared them; this is slower, and meant for a warm-up step.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        inputs: Any = None,
        storages: Iterable[weakref.ref] = (),
        find_inputs: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizers = _as_list(optimizer)
        self._inputs = inputs
        self._input_storages = list(storages)
        self.find_inputs = find_inputs
        self.found: list[weakref.ref] = []
        #: (storage number, signed bytes, op, module, phase), in order; `events` is the readable form.
        self._log: list[tuple[int, int, Any, str, str]] = []
        self._category: list[str | None] = []
        self._device: list[torch.device] = []
        self._live: dict[int, _Storage] = {}
        self._newborn: list[_Storage] = []
        self._kinds: dict[Any, int] = {}
        self._op: Any = None
        self._phase = "before"
        self._in_optimizer = 0
        self._outside_since: int | None = None
        self._names = {module: name for name, module in model.named_modules()} if model is not None else {}
        self._modules: list[str] = [""]
        self._recomputing = 0
        self._graph_kept: dict[int, bool] = {}
        self._sequence_starts: list[int] = [-1]
        self._sequence_modules: list[str] = [""]
        self._handles: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare `__torch_dispatch__` a wrapper that costs as much as the rest of it; nothing here is ever compiled."""
        return False

    # ---- the readable record ------------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """Every alloc and free so far; what was there at the start comes first, with the phase "before"."""
        return [
            Event(
                "alloc" if change > 0 else "free",
                storage,
                abs(change),
                self._category[storage] or "temporaries",
                phase,
                "" if op is None else op._schema.name.replace("::", "."),
                module,
                self._device[storage],
            )
            for storage, change, op, module, phase in self._log
        ]

    # ---- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Tracker":
        self._mark(_state_tensors(self.model), "parameters")
        self._mark(_optimizer_tensors(self.optimizers), "optimizer")
        self._mark(_gradients(self.model, self.optimizers), "gradients")
        self._mark((leaf for leaf in tree_leaves(self._inputs) if isinstance(leaf, Tensor)), "inputs", override=False)
        for reference in self._input_storages:
            storage = reference()
            if storage is not None and storage._cdata not in self._live:
                self._born(storage, storage.device, "inputs")
        self._inputs = storage = None  # hold nothing that the step may want to free
        self._phase = "forward"
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._mark_state()
        # Frees after the block are none of our business: without its references the tracker hears of no more.
        self._live.clear()
        self._newborn.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # let the wrapper call the ops on what it wraps: those are the real storages
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind != _SILENT:
            self._op = func
        if self.find_inputs and func._schema.name not in _FRESH_ALIASES:
            self._look_at(args, kwargs)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if kind <= _ALIAS:
            return out
        if kind == _ONE:
            storage = out.untyped_storage()
            if storage._cdata not in self._live:
                self._born(storage, out.device)
        else:
            self._look_over(out, resized=kind == _RESIZED)
        return out

    # ---- storages -----------------------------------------------------------------------------------------------

    def _born(self, storage: torch.UntypedStorage, device: torch.device, category: str | None = None) -> None:
        nbytes = storage.nbytes()
        if not nbytes:
            return
        phase, module = self._now()
        reference = _Storage(storage, self._freed)
        reference.id = number = len(self._category)
        reference.key = storage._cdata
        reference.nbytes = nbytes
        self._live[reference.key] = reference
        self._newborn.append(reference)
        self._category.append(category)
        self._device.append(device)
        self._log.append((number, nbytes, self._op, module, phase))

    def _freed(self, reference: _Storage) -> None:
        if self._live.get(reference.key) is not reference:
            return  # resized since: it lives on under another number
        phase, module = self._now()
        del self._live[reference.key]
        self._log.append((reference.id, -reference.nbytes, self._op, module, phase))

    def _look_over(self, out: Any, *, resized: bool) -> None:
        """Find new and resized storages among the results of an op that may return several, or none."""
        for tensor in _tensors((out,)):
            storage = tensor.untyped_storage()
            known = self._live.get(storage._cdata)
            if known is None:
                self._born(storage, tensor.device)
            elif resized and known.nbytes != storage.nbytes():
                # The new memory is there before the old is given back, as a resize copies from one to the other.
                self._born(storage, tensor.device, self._category[known.id])
                phase, module = self._now()
                self._log.append((known.id, -known.nbytes, self._op, module, phase))

    def _look_at(self, args: Any, kwargs: Any) -> None:
        for tensor in _tensors((*args, *(kwargs or {}).values())):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._live and storage.nbytes():
                self.found.append(weakref.ref(storage))
                self._mark([tensor], "inputs")

    def _mark(self, tensors: Iterable[Tensor], category: str, *, override: bool = True) -> None:
        """Say what the storages of `tensors` are for, counting as alive since the start those not seen before."""
        for tensor in chain.from_iterable(map(_plain, tensors)):
            storage = tensor.untyped_storage()
            known = self._live.get(storage._cdata)
            if known is None:
                self._born(storage, tensor.device, category)
            elif override:
                self._category[known.id] = category

    def _mark_state(self) -> None:
        self._mark(_gradients(self.model, self.optimizers), "gradients")
        self._mark(_optimizer_tensors(self.optimizers), "optimizer")
        self._mark(_state_tensors(self.model), "parameters")

    # ---- where in the step --------------------------------------------------------------------------------------

    def _now(self) -> tuple[str, str]:
        """The phase and the module of what happens now."""
        if self._in_optimizer:
            return "optimizer", self._modules[-1]
        if self._phase == "before":
            return "before", ""
        task = _graph_task()
        if task == -1:
            phase, module = "forward", self._modules[-1]
        elif self._recomputing or (self._keeps_graph(task) < torch.is_grad_enabled()):
            phase, module = "recompute", self._modules[-1] or self._module_of_node()
        else:
            phase, module = "backward", self._module_of_node()
        if phase != self._phase:
            self._change_phase(phase)
        return phase, module

    def _keeps_graph(self, task: int) -> bool:
        """Whether a backward runs with `create_graph=True`: then gradients are on from its first op, not only in recompute."""
        return self._graph_kept.setdefault(task, torch.is_grad_enabled())

    def _module_of_node(self) -> str:
        """The module whose forward made the autograd node that runs now: nodes are numbered as they are made."""
        node = _autograd_node()
        if node is None:
            return ""
        # Gradient accumulators carry the largest number there is: they fall outside every module.
        return self._sequence_modules[bisect_right(self._sequence_starts, node._sequence_nr()) - 1]

    def _change_phase(self, phase: str) -> None:
        if phase in ("backward", "recompute") and self._phase in ("forward", "recompute"):
            for reference in self._newborn:
                if self._live.get(reference.key) is reference and self._category[reference.id] is None:
                    self._category[reference.id] = "activations"
        self._newborn.clear()
        self._outside_since = len(self._log) if self._phase == "backward" and phase == "forward" else None
        self._phase = phase

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(module)
        name = name if name else type(module).__name__
        self._modules.append(name)
        if _graph_task() == -1:
            self._outside_since = None
            self._sequence_starts.append(_sequence_number())
            self._sequence_modules.append(name)
        else:
            self._now()
            self._recomputing += 1

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        self._modules.pop()
        if _graph_task() == -1:
            self._sequence_starts.append(_sequence_number())
            self._sequence_modules.append(self._modules[-1])
        else:
            self._now()
            self._recomputing -= 1

    def _enter_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._now()
        if self._outside_since is not None:  # unscaling and clipping, between backward and step, are the optimizer's
            for i in range(self._outside_since, len(self._log)):
                self._log[i] = (*self._log[i][:4], "optimizer")
        self._mark(_gradients(self.model, [*self.optimizers, optimizer]), "gradients")
        self._in_optimizer += 1
        self._change_phase("optimizer")

    def _leave_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._mark(_optimizer_tensors([*self.optimizers, optimizer]), "optimizer")
        self._in_optimizer -= 1


_SILENT, _ALIAS, _ONE, _MANY, _RESIZED = range(5)
#: Ops whose schema promises an alias of an argument, yet whose result has memory that was not there before.
_FRESH_ALIASES = ("aten::lift_fresh", "aten::lift")
_RESIZING = ("aten::resize_", "aten::resize_as_", "aten::set_", "aten::_resize_output_")


def _kind(func: Any) -> int:
    """Which results of an op need a look: none, one new tensor, several values, or arguments that may have grown."""
    schema = func._schema
    if func.namespace in ("profiler", "prim"):
        return _SILENT
    returns = schema.returns
    if schema.name in _RESIZING or any(argument.is_out for argument in schema.arguments):
        return _RESIZED
    if schema.name not in _FRESH_ALIASES and all(value.alias_info is not None for value in returns):
        return _ALIAS
    return _ONE if len(returns) == 1 and str(returns[0].type) == "Tensor" else _MANY


def _as_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer)  # type: ignore[list-item, arg-type]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an op, which nests nothing but lists; several times faster than pytree."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with real storages inside a wrapper subclass, or the tensor itself."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _state_tensors(model: nn.Module | None) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers()) if model is not None else iter(())


def _optimizer_tensors(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for leaf in tree_leaves(list(optimizer.state.values())):
            if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                yield leaf


def _gradients(model: nn.Module | None, optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    parameters: Callable[[], Iterable[Tensor]] = model.parameters if model is not None else lambda: ()
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    for parameter in dict.fromkeys(chain(parameters(), *groups)):
        if parameter.grad is not None:
            yield parameter.grad
