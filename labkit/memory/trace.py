"""Run a training step on fake tensors and write down every allocation: shapes are real, memory is not."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from labkit.memory.cuda_attention import AttentionChoice
from labkit.memory.cuda_semantics import always_steps, cuda_semantics, use_foreach
from labkit.memory.cuda_workspaces import HIDDEN_OPS, UNKNOWN, HiddenMemory
from labkit.memory.shape_cache import ShapeCache
from labkit.memory.tracker import Event, Tracker
from labkit.techniques.checkpointing import Policy
from labkit.techniques.precision import Precision, as_precision
from labkit.techniques.step import TrainingStep
from labkit.workload import Workload

#: Model, optimizer (or several), one training step, and any tensors that the step reads but does not make.
Built = tuple[nn.Module, Optimizer | Iterable[Optimizer], Callable[[], Any], Any]


class UnknownMemory(ValueError):
    """The step meets an operation whose memory depends on values, which a prediction does not have."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Every allocation of the first steps of a training run."""

    events: list[Event]
    #: Index of the first event of the last step: everything from here on is a steady step.
    steady: int
    #: Storages that live on the host although a tracker sees them: step counters, offloaded activations.
    host: frozenset[int]
    attention: tuple[AttentionChoice, ...]
    notes: tuple[str, ...]
    #: Storages made inside attention's math kernel, the S x S matrices among them.
    math_attention: frozenset[int] = frozenset()


def trace_build(
    build: Callable[[], Any], *, capability: tuple[int, int] | None = (8, 0), steps: int = 2, find_inputs: bool = True
) -> Trace:
    """Trace `steps` calls of the step that `build()` makes under fake tensors.

    `build` returns (model, optimizer, step), or those and the tensors that the step reads. `capability` is the card's; None
    traces a CPU. Raises UnknownMemory, naming the operation and the module, when an operation's result has a shape that
    depends on values.
    """
    with ExitStack() as stack:
        fake = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(ShapeCache(fake))
        stack.enter_context(always_steps())
        stack.enter_context(_not_tracing())
        attention = stack.enter_context(cuda_semantics(capability)) if capability else None
        model, optimizer, step, inputs = _unpacked(build())
        if capability:
            use_foreach(optimizer)
        tracker = Tracker(model, optimizer, inputs=inputs, find_inputs=find_inputs)
        hidden = HiddenMemory(tracker, capability)
        if attention:
            attention.count = lambda: len(tracker._category)
        with tracker, hidden:
            try:
                for _ in range(steps):
                    steady = len(tracker._log)
                    step()
            except UNKNOWN as error:
                raise UnknownMemory(_explain(error, hidden.failed_in)) from None
            hidden.step_counters_on_host()
            hidden.forget()
    return Trace(
        events=_in_order(tracker.events, steady),
        steady=steady,
        host=frozenset(hidden.host if capability else ()),
        attention=tuple(attention.choices.values()) if attention else (),
        notes=tuple(hidden.notes),
        math_attention=frozenset(attention.math_storages if attention else ()),
    )


def trace_workload(
    workload: Workload,
    batch_size: int,
    *,
    precision: str | Precision = "32-true",
    checkpointing: Policy = "none",
    capability: tuple[int, int] | None = (8, 0),
    clip: float | None = None,
    micro_batches: int = 1,
) -> Trace:
    """Trace two optimizer steps of a `Workload`; see `trace_build`."""
    setting = as_precision(precision)

    def build() -> Built:
        model = workload.model()
        cast_fake(model, setting.parameter_dtype)
        step = TrainingStep(
            workload,
            precision=setting,
            checkpointing=checkpointing,
            device="cpu",
            clip=clip,
            fast_matmul=False,
            model=model,
        )
        if step.scaler:
            # Two numbers that live from the first step on; made here, they are no part of a steady step, as for the meter.
            step.scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
        batches = [make_batch(workload, batch_size) for _ in range(micro_batches)]
        return model, step.optimizer, lambda: step(*batches), batches

    return trace_build(build, capability=capability, find_inputs=False)


def make_batch(workload: Workload, batch_size: int) -> Any:
    """A fake batch; where the workload's own code needs values to make one, a real batch whose values are dropped."""
    try:
        return workload.batch(batch_size)
    except (*UNKNOWN, RuntimeError, NotImplementedError):
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        with torch.utils._python_dispatch._disable_current_modes():
            real = workload.batch(batch_size)
        return tree_map_only(Tensor, mode.from_tensor, real)


def cast_fake(model: nn.Module, dtype: torch.dtype) -> None:
    """What `model.to(dtype)` does, for fake parameters, which `Module.to` refuses; tied parameters stay tied."""
    done: dict[Tensor, Tensor] = {}
    for module in model.modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            if not tensor.is_floating_point() or tensor.dtype == dtype:
                continue
            if tensor not in done:
                cast = tensor.detach().to(dtype)
                is_parameter = name in module._parameters
                done[tensor] = nn.Parameter(cast, tensor.requires_grad) if is_parameter else cast
            setattr(module, name, done[tensor])


def _not_tracing() -> AbstractContextManager[Any]:
    """transformers takes fake tensors for a compiler's and then builds masks that a real step leaves out; tell it otherwise."""
    if "transformers" not in sys.modules:
        return nullcontext()
    from transformers.utils import import_utils

    return mock.patch.object(import_utils, "is_fake_tensor", lambda tensor: False, create=True)


def _in_order(events: list[Event], steady: int) -> list[Event]:
    """`events` with neighbouring frees in the order of birth: autocast drops its copies of weights in no order of its own."""
    ordered: list[Event] = []
    start = 0
    for i, event in enumerate([*events, None]):
        if event is None or event.kind == "alloc" or i == steady:
            ordered += sorted(events[start:i], key=lambda free: free.storage)
            start = i
            if event is not None and event.kind == "alloc":
                ordered.append(event)
                start = i + 1
    return ordered


def _unpacked(built: Any) -> Built:
    if not isinstance(built, tuple) or len(built) not in (3, 4):
        raise TypeError(f"build() returns (model, optimizer, step) or (model, optimizer, step, inputs), not {built!r}")
    return (*built, None)[:4]  # type: ignore[return-value]


def _explain(error: Exception, module: str) -> str:
    op = getattr(error, "func", None) or "an operation"
    where = f" in module {module!r}" if module else ""
    return f"{op}{where} makes a result whose size depends on the values in a tensor, so its memory cannot be predicted"


def is_hidden(event: Event) -> bool:
    """Whether an event is memory that a kernel takes inside itself."""
    return event.op in HIDDEN_OPS
