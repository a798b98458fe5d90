"""What autocast makes of each operation: a log of the types that really ran, and the lists inside the installed torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.techniques.probes.modules import ModuleTracker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Short names of dtypes, as the course writes them.
DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.bool: "bool",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One operation as it ran."""

    op: str
    inputs: tuple[str, ...]
    output: str
    module: str
    phase: str


class AutocastLog(TorchDispatchMode):
    """Lists every operation with a floating-point output while the `with` block lasts; `rows` holds them in order.

    It stands below autocast, so the casts that autocast puts in are rows too: `_to_copy`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._tracker = ModuleTracker(model)

    def __enter__(self) -> "AutocastLog":
        self._tracker.__enter__()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._tracker.__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tuple(_name(each.dtype) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        result = func(*args, **kwargs)
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if outputs and outputs[0].is_floating_point() and not func.is_view:
            op = func._schema.name.removeprefix("aten::")
            self.rows.append(Row(op, inputs, _name(outputs[0].dtype), self._tracker.module, self._tracker.phase))
        return result

    @property
    def casts(self) -> int:
        """How many conversions of dtype ran."""
        return sum(row.op == "_to_copy" and row.inputs[:1] != (row.output,) for row in self.rows)

    def table(self) -> "pd.DataFrame":
        """A row an operation, in the order they ran: op, input dtypes, output dtype, module, phase."""
        import pandas as pd

        rows = [(row.op, ", ".join(row.inputs), row.output, row.module, row.phase) for row in self.rows]
        return pd.DataFrame(rows, columns=["op", "inputs", "output", "module", "phase"])

    def summary(self) -> "pd.DataFrame":
        """How often each operation gave each dtype: a row an operation, a column a dtype."""
        import pandas as pd

        table = self.table()
        return pd.crosstab(table["op"], table["output"])

    def plot(self) -> "Figure":
        """How often each operation ran in each dtype, as stacked bars."""
        from labkit import plots

        summary = self.summary()
        summary = summary.loc[summary.sum(axis=1).sort_values().index]
        low = 100 * summary[[name for name in ("bf16", "fp16") if name in summary]].to_numpy().sum() / summary.to_numpy().sum()
        title = f"{low:.0f}% of the operations gave a 16-bit result; the rest kept fp32"
        fig, ax = plots.figure(title, x="times run", size=(8.0, 0.24 * len(summary) + 1.4))
        names = [name.replace("_scaled_dot_product_", "sdpa_").replace("_for_cpu", "") for name in summary.index]
        styles = {"fp32": ("blue", ""), "bf16": ("orange", "///"), "fp16": ("vermilion", "///"), "fp64": ("black", "")}
        left = summary.iloc[:, 0] * 0
        for name in summary.columns:
            color, hatch = styles.get(name, ("grey", ""))
            ax.barh(names, summary[name], left=left, color=plots.COLORS[color], hatch=hatch, edgecolor="white", label=name)
            left = left + summary[name]
        ax.legend(title="output", loc="lower right")
        return fig


def autocast_log(model: nn.Module) -> AutocastLog:
    """Log what type each operation of `model` runs in, forward and backward.

    Example::

        with autocast_log(model) as log, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_function(model(x), y)
        log.table()
    """
    return AutocastLog(model)


def _name(dtype: torch.dtype) -> str:
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


#: How autocast treats an operation: `low` casts its inputs to the 16-bit type, `fp32` casts them (or its result) to fp32,
#: `widest` casts all to the widest input, `refused` raises; `-` leaves it as it is.
TREATMENTS = ("low", "fp32", "widest", "refused", "-")

#: Old spellings that make torch print a warning when called; their successors are in the list (`linalg_qr`, ...).
_DEPRECATED = {"_lu_with_info", "lu_solve", "qr", "stft", "cross", "chain_matmul"}


def autocast_lists() -> "pd.DataFrame":
    """How autocast treats each operation on the CPU and on CUDA, asked of the installed torch; no GPU is needed.

    A row an operation with a rule on either device, columns `cpu` and `cuda` with a word of `TREATMENTS`. Every operation
    is called under autocast on tensors without storage, and the casts that come before its kernel tell its rule.
    """
    import pandas as pd

    return pd.DataFrame(_rules()).fillna("-").sort_index().rename_axis("op")


@cache
def _rules() -> dict[str, dict[str, str]]:
    """The rules by device and operation; overloads of one operation have one rule."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    rules: dict[str, dict[str, str]] = {"cpu": {}, "cuda": {}}
    with FakeTensorMode():
        for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
            for full_name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
                name, _, overload = full_name.removeprefix("aten::").partition(".")
                if full_name.startswith("aten::") and name not in _DEPRECATED:
                    op = getattr(getattr(torch.ops.aten, name), overload or "default")
                    rules[device].setdefault(name, _treatment(op, device))
    return rules


def _treatment(op: Any, device: str) -> str:
    low = torch.bfloat16 if device == "cpu" else torch.float16
    from_fp32 = _casts(op, device, low, (torch.float32,))
    if "refused" in from_fp32:
        return "refused"
    if from_fp32[:1] == [low]:
        return "low"
    if _casts(op, device, low, (low,))[:1] == [torch.float32]:
        return "fp32"
    return "widest" if _casts(op, device, low, (low, torch.float32))[:1] == [torch.float32] else "-"


class _Reached(Exception):
    """The first operation after autocast is reached; nothing more needs to run."""


class _CastRecorder(TorchDispatchMode):
    """Records the dtypes that autocast casts to, and stops at the first operation that is not a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.casts: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about the device, not an operation
            return func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default:
            self.casts.append(kwargs["dtype"])
            return func(*args, **kwargs)
        # Reductions are not cast: autocast asks their kernel for an fp32 result.
        wanted = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype) and each.is_floating_point]
        # Softmax on CUDA takes fp16 in and gives fp32 out by a flag of its own.
        if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default) and args[2]:
            wanted.append(torch.float32)
        self.casts.extend(wanted)
        raise _Reached


def _casts(op: Any, device: str, low: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> list[Any]:
    """The dtypes that autocast casts to before `op` runs on arguments of `dtypes` (the last one goes on)."""
    arguments, options = _arguments(op, device, list(dtypes))
    with _autocast_flags(device, low), _CastRecorder() as recorder:
        try:
            op(*arguments, **options)
        except _Reached:
            pass
        except Exception as error:
            # Any other complaint, whatever its class, is about the arguments made up here, and comes after the casts.
            if "unsafe to autocast" in str(error):
                return ["refused"]
    return recorder.casts


def _arguments(op: Any, device: str, dtypes: list[torch.dtype]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that `op`'s schema takes: 2 x 2 matrices, ones, and the defaults."""
    made = {
        "List[Tensor]": lambda: [_matrix(device, dtypes), _matrix(device, dtypes)],
        "List[Optional[Tensor]]": lambda: [torch.empty(2, 2, dtype=torch.int64, device=device)],
        "Tensor": lambda: _matrix(device, dtypes),
        "bool": lambda: False,
        "str": lambda: "ij,jk->ik",
        "float": lambda: 1.0,
        "List[int]": lambda: [1, 1],
        "List[float]": lambda: [1.0, 1.0],
    }
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value():
            continue
        value = None if kind.startswith("Optional") else made.get(kind, lambda: 1)()
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def _matrix(device: str, dtypes: list[torch.dtype]) -> Tensor:
    return torch.empty(2, 2, dtype=dtypes.pop(0) if len(dtypes) > 1 else dtypes[0], device=device)


@contextmanager
def _autocast_flags(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Autocast for `device` switched on by its flags: `torch.autocast("cuda")` switches itself off without a GPU."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()
