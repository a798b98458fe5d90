"""Which operation made the first infinity or NaN, in the forward pass, the backward pass or the optimizer."""

import math
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.techniques.probes.autocast import DTYPES
from labkit.techniques.probes.modules import ModuleTracker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: Operations that make no new value: they move finite numbers, or hand out memory that nobody has written yet.
_HARMLESS = frozenset({
    "clone", "cat", "stack", "index", "embedding", "gather", "_unsafe_view", "slice_backward", "select_backward", "zeros",
    "zeros_like", "new_zeros", "ones_like", "zero_", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
    "resize_", "set_", "_local_scalar_dense", "expand_copy", "repeat",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """The operation that made the first infinity or NaN."""

    #: Name of the ATen operation, such as `exp` or `_to_copy` (a cast).
    op: str
    #: Dotted name of the module it ran in; empty for the model itself and outside of it.
    module: str
    #: `forward`, `backward` or `optimizer`.
    phase: str
    #: `nan`, `inf` or `-inf`.
    kind: str
    #: dtype of the result.
    dtype: str
    shape: tuple[int, ...]
    #: The largest magnitude among the finite inputs; NaN where there was none.
    largest_input: float
    #: Names of the parameters or buffers it read that were not finite already.
    bad_parameters: tuple[str, ...]

    def __str__(self) -> str:
        where = f"module {self.module!r}" if self.module else "the model itself"
        text = f"{self.phase}: {self.op} in {where} made {self.kind} ({self.dtype}, shape {self.shape})"
        if self.bad_parameters:
            return f"{text}; it read {', '.join(self.bad_parameters)}, not finite already"
        return f"{text}; its largest finite input was {self.largest_input:.6g}"


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest magnitude that one operation gave."""

    op: str
    module: str
    phase: str
    dtype: str
    largest: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the schema of an operation says, looked up once."""

    op: str
    skipped: bool
    #: Positions and names of the arguments that it overwrites.
    overwrites: tuple[tuple[int, str], ...]


@cache
def _facts(func: Any) -> _Facts:
    op = func._schema.name.removeprefix("aten::")
    written = [(i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return _Facts(op, func.is_view or op in _HARMLESS, tuple(written))


class _Before:
    """What is known of tensors that an operation is about to overwrite."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.kinds = _kinds(tensors)
        # Only of tensors that are finite all over: this runs at every operation in place, and has to be cheap.
        largest = (max(map(abs, _extremes(each))) for each in tensors)
        self.magnitudes = [magnitude for magnitude in largest if math.isfinite(magnitude)]


class FirstNonfinite(TorchDispatchMode):
    """Watches every operation until one gives an infinity or NaN that no input had; `found` names it.

    An infinity that is written on purpose (a mask filled with -inf) is not a finding, and neither is one that is
    carried along. NaN that comes in from outside is reported at the first operation that reads it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: Nonfinite | None = None
        #: The largest magnitude of each operation until then, in order.
        self.peaks: list[Peak] = []
        self._tracker = ModuleTracker(model)
        tensors = [*model.named_parameters(), *model.named_buffers()]
        self._names = {tensor.data_ptr(): name for name, tensor in tensors}

    def __enter__(self) -> "FirstNonfinite":
        self._tracker.__enter__()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._tracker.__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = _facts(func)
        if facts.skipped or self.found is not None:
            return func(*args, **kwargs)
        overwritten = [args[i] if i < len(args) else kwargs.get(name) for i, name in facts.overwrites]
        phase = self._tracker.phase
        # What is overwritten has to be looked at before. In the optimizer that would double the work for nothing: what it
        # overwrites was looked at when it was last written.
        before = _Before(_checkable(overwritten)) if overwritten and phase != "optimizer" else _NOTHING
        result = func(*args, **kwargs)
        # Operations on lists of tensors overwrite them and return nothing.
        self._look(facts.op, phase, _checkable(result) or _checkable(overwritten), args, kwargs, before)
        return result

    def _look(self, op: str, phase: str, outputs: list[Tensor], args: Any, kwargs: Any, before: "_Before") -> None:
        largest = 0.0
        for output in outputs:
            low, high = _extremes(output)
            magnitude = max(-low, high)
            if not math.isfinite(magnitude):  # NaN is both extremes at once
                self._judge(op, output, args, kwargs, before)
            largest = max(largest, magnitude)
        if outputs:
            self.peaks.append(Peak(op, self._tracker.module, phase, DTYPES[outputs[0].dtype], largest))

    def _judge(self, op: str, output: Tensor, args: Any, kwargs: Any, before: "_Before") -> None:
        if self.found is not None:
            return
        inputs = _checkable((args, kwargs))
        overwritten = [each for each in inputs if each is output]
        read = [each for each in inputs if all(each is not other for other in overwritten)]
        had = before.kinds | _kinds(read)
        written = {repr(each) for each in tree_leaves((args, kwargs)) if isinstance(each, float) and not math.isfinite(each)}
        kinds = _kinds([output])
        new = kinds - had - written
        if not new and "nan" not in kinds:
            return
        kind = sorted(new or kinds, key=("nan", "inf", "-inf").index)[0]
        bad = tuple(self._names[each.data_ptr()] for each in read if each.data_ptr() in self._names and _kinds([each]))
        self.found = Nonfinite(
            op=op,
            module=self._tracker.module,
            phase=self._tracker.phase,
            kind=kind,
            dtype=DTYPES[output.dtype],
            shape=tuple(output.shape),
            largest_input=max((*_magnitudes(read), *before.magnitudes), default=math.nan),
            bad_parameters=bad,
        )

    def table(self) -> "pd.DataFrame":
        """A row an operation until the finding: op, module, phase, dtype and largest magnitude."""
        import pandas as pd

        rows = [(p.op, p.module, p.phase, p.dtype, p.largest) for p in self.peaks]
        return pd.DataFrame(rows, columns=["op", "module", "phase", "dtype", "largest"])

    def plot(self) -> "Figure":
        """The largest magnitude of each operation in order, beside fp16's limit, with the culprit marked."""
        from labkit import plots

        title = "Every operation stayed finite"
        if self.found:
            title = (
                f"First {self.found.kind}: {self.found.op} in {self.found.module or 'the model itself'} ({self.found.phase})"
            )
        fig, ax = plots.figure(title, x="operation, in the order they ran", y="largest magnitude of the result")
        for phase, color, marker in (("forward", "blue", "o"), ("backward", "orange", "s"), ("optimizer", "green", "^")):
            chosen = [(i, p.largest) for i, p in enumerate(self.peaks) if p.phase == phase and 0 < p.largest < math.inf]
            if chosen:
                ax.plot(*zip(*chosen, strict=True), marker, color=plots.COLORS[color], markersize=4, label=phase)
        ax.set_yscale("log")
        plots.label_line(ax, 65504, "largest fp16 number, 65504")
        if self.found:
            ax.axvline(len(self.peaks) - 1, color=plots.COLORS["vermilion"], linewidth=1.5, label=f"{self.found.kind} here")
        ax.legend(loc="lower right")
        return fig


def first_nonfinite(model: nn.Module) -> FirstNonfinite:
    """Find the first operation that makes an infinity or NaN; at most twice the time for steps of 100 ms and more.

    Example::

        with first_nonfinite(model) as watch:
            loss_function(model(x), y).backward()
        print(watch.found or "all finite")
        watch.plot()
    """
    return FirstNonfinite(model)


def _checkable(tree: Any) -> list[Tensor]:
    """The floating-point tensors in arguments or results: those that can hold an infinity."""
    if isinstance(tree, Tensor):
        return [tree] if tree.dtype in _CHECKED and tree.numel() else []
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [found for each in tree for found in _checkable(each)]


def _extremes(tensor: Tensor) -> tuple[float, float]:
    low, high = tensor.detach().aminmax()
    return low.item(), high.item()


def _magnitudes(tensors: list[Tensor]) -> list[float]:
    """The largest finite magnitude of each tensor that has a finite number."""
    finite = [each[torch.isfinite(each)] for each in tensors]
    return [max(map(abs, _extremes(each))) for each in finite if each.numel()]


def _kinds(tensors: list[Tensor]) -> frozenset[str]:
    """Which of `nan`, `inf` and `-inf` occur in `tensors`."""
    kinds: set[str] = set()
    for tensor in tensors:
        low, high = _extremes(tensor)
        if math.isnan(low):
            kinds.add("nan")
        if high == math.inf or (math.isnan(low) and bool(torch.isposinf(tensor).any())):
            kinds.add("inf")
        if low == -math.inf or (math.isnan(low) and bool(torch.isneginf(tensor).any())):
            kinds.add("-inf")
    return frozenset(kinds)


_NOTHING = _Before([])
