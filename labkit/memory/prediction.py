"""Predict the memory of a training step without the device: on a laptop, for any PyTorch model, in seconds.

The step runs on fake tensors that mean what a card would make of them (`labkit.memory.trace`), and the card's caching
allocator is replayed on what it asks for (`labkit.memory.allocator`). What is seen: every tensor, kernels' known workspaces,
rounding, segments. What is stated instead: CUDA's own context. What is not counted: cuDNN's choice of workspace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.memory.allocator import CachingAllocator, OutOfMemory
from labkit.memory.cuda_attention import AttentionChoice
from labkit.memory.gpus import Gpu, as_gpu
from labkit.memory.report import MemoryReport
from labkit.memory.trace import Trace, is_hidden, trace_build, trace_workload
from labkit.memory.tracker import CATEGORIES, Event
from labkit.memory.units import UNITS, format_bytes, parse_bytes
from labkit.techniques.checkpointing import Policy
from labkit.techniques.precision import Precision, as_precision
from labkit.workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What CUDA itself takes on a card for a process that uses PyTorch: 300 to 500 MB with CUDA 12's lazy loading of kernels.
CONTEXT = "450 MB"
#: The card that is meant where none is named: an A100's rules.
DEFAULT_CAPABILITY = (8, 0)


@dataclass(frozen=True, repr=False)
class Prediction:
    """The predicted memory of a steady training step (the second or a later one). All sizes in bytes."""

    name: str
    batch_size: int
    precision: str
    checkpointing: str
    device: str
    gpu: Gpu | None
    #: The steady step on the tensors alone: peak by category, timeline, op and module at the peak.
    report: MemoryReport
    #: What `torch.cuda.max_memory_allocated` would show: rounded blocks, and workspaces that kernels ask for.
    allocated_peak: int
    #: What `torch.cuda.max_memory_reserved` would show, with memory to spare: whole segments.
    reserved_peak: int
    context: int
    #: The kernels that attention takes, each with the reason.
    attention: tuple[AttentionChoice, ...]
    warnings: tuple[str, ...]
    trace: Trace = field(repr=False)

    @property
    def live_peak(self) -> int:
        """The highest sum of tensors alive at once: what `labkit.memory.measure` counts."""
        return self.report.peak_bytes

    @property
    def nvidia_smi(self) -> int:
        """What nvidia-smi would show for the process: the reserved segments and CUDA's context."""
        return self.reserved_peak + self.context

    @property
    def by_category(self) -> dict[str, int]:
        """What the live peak is made of."""
        return self.report.by_category

    @property
    def timeline(self) -> pd.DataFrame:
        """One row an allocation or free of the steady step; see `MemoryReport.timeline`."""
        return self.report.timeline

    @property
    def op_at_peak(self) -> str:
        """The op that reached the live peak."""
        return self.report.op_at_peak

    @property
    def module_at_peak(self) -> str:
        """The module of that op, as a dotted name."""
        return self.report.module_at_peak

    @property
    def attention_kernels(self) -> str:
        """The kernels that attention takes, such as "math", or "-" where the model calls none."""
        return "+".join(dict.fromkeys(choice.backend for choice in self.attention)) or "-"

    @cached_property
    def margin(self) -> float:
        """How far off a prediction was at worst on published totals, as a fraction: quote it with every figure."""
        from labkit.memory.published import margin

        return margin() if self.device == "cuda" else 0.0

    def fits(self, budget: str | int) -> bool:
        """Whether the step runs when the allocator may hold `budget` bytes: it gives unused segments back before it fails."""
        return fits(self.trace, parse_bytes(budget))

    @property
    def limited_by(self) -> str:
        """What the peak is, in words: its largest category that grows, the op and the module."""
        grows = {name: size for name, size in self.by_category.items() if name in ("activations", "temporaries")}
        fixed = sum(self.by_category.values()) - sum(grows.values())
        largest = max(grows, key=grows.__getitem__) if sum(grows.values()) > fixed else max(self.by_category, key=self._size)
        where = f" of {self.module_at_peak}" if self.module_at_peak else ""
        return f"{largest}, at {self.op_at_peak}{where}"

    def _size(self, category: str) -> int:
        return self.by_category[category]

    def table(self, unit: str = "GiB") -> pd.DataFrame:
        """The way from the tensors to nvidia-smi, one row a part, in `unit`."""
        rows = {**self.by_category, "live peak": self.live_peak}
        if self.device == "cuda":
            rows |= {"allocated peak": self.allocated_peak, "reserved peak": self.reserved_peak, "nvidia-smi": self.nvidia_smi}
        return pd.DataFrame({unit: pd.Series(rows) / UNITS[unit]}).rename_axis("part")

    def __repr__(self) -> str:
        head = f"{self.name} · batch {self.batch_size} · {self.precision} · checkpointing {self.checkpointing}"
        peaks = f"live {format_bytes(self.live_peak)}"
        if self.device == "cuda":
            peaks += (
                f", allocated {format_bytes(self.allocated_peak)}, reserved {format_bytes(self.reserved_peak)}, "
                f"nvidia-smi {format_bytes(self.nvidia_smi)}, give or take {self.margin:.0%}"
            )
        notes = "".join(f"\n  ! {warning}" for warning in self.warnings)
        return f"Prediction({head}: {peaks}; peak at {self.limited_by}){notes}"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        head = f"{self.name} · batch {self.batch_size} · {self.precision} · checkpointing {self.checkpointing}"
        margin = f" Give or take {self.margin:.0%}." if self.margin else ""
        return (
            f"<p><b>{escape(head)}</b>. Peak at {escape(self.limited_by)}.{margin}</p>"
            f"{self.table().style.format('{:,.2f}').to_html()}<ul>{notes}</ul>"
        )

    def plot(self, title: str | None = None) -> "Figure":
        """The prediction as a stacked bar, from parameters to CUDA's context, against the card's line."""
        from labkit.memory.figures import bars

        return bars([self], title=title or f"{format_bytes(self.nvidia_smi)} at batch {self.batch_size}")


def predict(
    workload: Workload,
    batch_size: int,
    *,
    precision: str | Precision = "32-true",
    checkpointing: Policy = "none",
    device: str = "cuda",
    gpu: str | Gpu | None = None,
    context: str | int = CONTEXT,
    clip: float | None = None,
    micro_batches: int = 1,
) -> Prediction:
    """Predict a steady step of `workload`: on a card (`device="cuda"`, the rules of `gpu`, by default an A100's) or a CPU.

    Nothing is allocated: a model of 8 billion parameters takes seconds and less than 1 GB. `context` is what CUDA itself takes.
    Raises ValueError for a batch size below 1, an unknown setting, policy, device or card; UnknownMemory (a ValueError) naming
    the operation when the model has one whose result's size depends on values.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    card, capability = _card(device, gpu)
    trace = trace_workload(
        workload,
        batch_size,
        precision=precision,
        checkpointing=checkpointing,
        capability=capability,
        clip=clip,
        micro_batches=micro_batches,
    )
    return from_trace(
        trace,
        name=workload.name,
        batch_size=batch_size,
        precision=as_precision(precision).name,
        checkpointing=str(checkpointing),
        gpu=card,
        device=device,
        context=parse_bytes(context),
    )


def predict_build(
    build: Callable[[], Any],
    *,
    name: str = "step",
    batch_size: int = 1,
    device: str = "cuda",
    gpu: str | Gpu | None = None,
    context: str | int = CONTEXT,
    steps: int = 2,
) -> Prediction:
    """Predict any training loop: `build()` returns the model, the optimizer and a function that takes one step.

    `build` runs under fake tensors on the CPU: make model and data there, in the dtypes wanted, and use autocast for "cpu"
    where the real loop uses it for "cuda". It may return a fourth value, a nest of tensors that the step reads.
    """
    card, capability = _card(device, gpu)
    trace = trace_build(build, capability=capability, steps=steps)
    return from_trace(
        trace, name=name, batch_size=batch_size, precision="as built", gpu=card, device=device, context=parse_bytes(context)
    )


def from_trace(
    trace: Trace,
    *,
    name: str,
    batch_size: int,
    precision: str,
    context: int,
    checkpointing: str = "none",
    gpu: Gpu | None = None,
    device: str = "cuda",
) -> Prediction:
    """The prediction that follows from a trace."""
    report = MemoryReport(steady_events(trace), device, None, name)
    allocated, reserved = replay(trace) if device == "cuda" else (report.peak_bytes, report.peak_bytes)
    return Prediction(
        name=name,
        batch_size=batch_size,
        precision=precision,
        checkpointing=checkpointing,
        device=device,
        gpu=gpu,
        report=report,
        allocated_peak=allocated,
        reserved_peak=reserved,
        context=context if device == "cuda" else 0,
        attention=trace.attention,
        warnings=tuple(_warnings(trace, report, allocated, reserved)),
        trace=trace,
    )


def steady_events(trace: Trace) -> list[Event]:
    """The last step's events on tensors alone; what is alive when it starts comes first, with the phase "before"."""
    alive: dict[int, Event] = {}
    visible = [(i, e) for i, e in enumerate(trace.events) if e.storage not in trace.host and not is_hidden(e)]
    hidden = {e.storage for e in trace.events if is_hidden(e) and e.kind == "alloc"}
    visible = [(i, e) for i, e in visible if e.storage not in hidden]
    for i, event in visible:
        if i >= trace.steady:
            break
        if event.kind == "alloc":
            alive[event.storage] = event._replace(phase="before", op="", module="")
        else:
            alive.pop(event.storage, None)
    return [*alive.values(), *(event for i, event in visible if i >= trace.steady)]


def replay(
    trace: Trace, *, limit: int | None = None, expandable: bool = False, sizes: Sequence[int] | None = None
) -> tuple[int, int]:
    """Allocated peak of the steady step, and reserved peak of the run, by the caching allocator's rules.

    `sizes` replaces the events' own, one an event. Raises OutOfMemory when `limit` bytes of segments do not do.
    """
    allocator = CachingAllocator(limit=limit, expandable=expandable)
    handles: dict[int, int] = {}
    for i, event in enumerate(trace.events):
        if i == trace.steady:
            allocator.peak_allocated = allocator.allocated
        if event.storage in trace.host:
            continue
        if event.kind == "alloc":
            handles[event.storage] = allocator.allocate(event.nbytes if sizes is None else sizes[i])
        else:
            allocator.free(handles.pop(event.storage))
    return allocator.peak_allocated, allocator.peak_reserved


def fits(trace: Trace, limit: int, *, expandable: bool = False, sizes: Sequence[int] | None = None) -> bool:
    """Whether the allocator serves every request of `trace` within `limit` bytes of segments."""
    try:
        replay(trace, limit=limit, expandable=expandable, sizes=sizes)
    except OutOfMemory:
        return False
    return True


def _card(device: str, gpu: str | Gpu | None) -> tuple[Gpu | None, tuple[int, int] | None]:
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device {device!r} cannot be predicted; choose 'cuda' or 'cpu'")
    if device == "cpu":
        if gpu is not None:
            raise ValueError(f"device 'cpu' has no gpu, but gpu={gpu!r} was given")
        return None, None
    card = None if gpu is None else as_gpu(gpu)
    return card, DEFAULT_CAPABILITY if card is None else card.capability


def _warnings(trace: Trace, report: MemoryReport, allocated: int, reserved: int) -> Sequence[str]:
    found = [_math_warning(trace, choice) for choice in trace.attention if choice.backend == "math"]
    if report.phase_at_peak == "optimizer":
        found.append(
            "the peak is in the optimizer's step, where the foreach form makes a copy of what it works on; fused=True does not"
        )
    if reserved > 1.1 * allocated:
        found.append(
            f"segments hold {format_bytes(reserved - allocated)} more than the largest sum in use (fragmentation); "
            "PYTORCH_ALLOC_CONF=expandable_segments:True reduces it"
        )
    return [*found, *trace.notes]


def _math_warning(trace: Trace, choice: AttentionChoice) -> str:
    cost = _attention_at_peak(trace)
    return (
        f"attention falls to the math backend because {choice.reason}; one matrix of scores takes "
        f"{format_bytes(choice.scores_bytes)} and what the kernel keeps is {format_bytes(cost)} at its most"
    )


def _attention_at_peak(trace: Trace) -> int:
    """The most that storages made inside math attention hold at once in the steady step."""
    live = most = 0
    for event in trace.events:
        if event.storage in trace.math_attention:
            live += event.nbytes if event.kind == "alloc" else -event.nbytes
            most = max(most, live)
    return most


__all__ = ["CATEGORIES", "CONTEXT", "Prediction", "fits", "predict", "predict_build", "from_trace", "replay", "steady_events"]
