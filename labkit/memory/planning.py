"""What fits: the largest batch in a budget, and what precision and checkpointing change about it.

Memory is nearly affine in the batch, so two traces tell most: each allocation's size is taken as a + b x batch, the caching
allocator is replayed on those sizes at any batch, and the answer is checked by a real prediction. Where a model is not affine
(its operations change with the batch), the search runs on real predictions alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.memory.gpus import Gpu, as_gpu
from labkit.memory.prediction import CONTEXT, Prediction, fits, from_trace, predict
from labkit.memory.trace import Trace
from labkit.memory.units import UNITS, format_bytes, parse_bytes
from labkit.techniques.precision import as_precision
from labkit.workload import Workload

#: Batches whose traces fix each allocation's size; 1 is left out, since dimensions of size 1 change what operations do.
PROBES = (2, 3)
#: No search goes beyond this batch.
LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest batch that fits a budget. `batch` is 0 where not even one example fits; then there is no prediction."""

    batch: int
    #: The memory that the allocator may take, in bytes.
    budget: int
    #: The prediction at the largest batch.
    prediction: Prediction | None
    #: What stops the next batch: the category, op and module at its peak.
    limited_by: str
    #: How many times the step was traced to find it.
    traces: int

    @property
    def peak_bytes(self) -> int:
        """Allocated peak at the largest batch; 0 where nothing fits."""
        return 0 if self.prediction is None else self.prediction.allocated_peak


class BatchCurve:
    """One setting's memory at any batch, from traces at two batches; `exact` says whether every allocation is affine."""

    def __init__(self, first: Trace, second: Trace, batches: tuple[int, int] = PROBES) -> None:
        self.low, self.high = batches
        self._first, self._second = first, second
        self.exact = self._is_affine()

    def _is_affine(self) -> bool:
        step = self.high - self.low
        pairs = list(zip(self._first.events, self._second.events, strict=False))
        return len(self._first.events) == len(self._second.events) and all(
            a.kind == b.kind and a.storage == b.storage and a.op == b.op and (b.nbytes - a.nbytes) % step == 0 for a, b in pairs
        )

    def sizes(self, batch: int) -> list[int]:
        """The size of each event at `batch` by the straight line through its two sizes."""
        steps, width = batch - self.low, self.high - self.low
        pairs = zip(self._first.events, self._second.events, strict=True)
        return [max(a.nbytes + (b.nbytes - a.nbytes) // width * steps, 0) for a, b in pairs]

    def fits(self, batch: int, limit: int) -> bool:
        """Whether a step at `batch` runs within `limit` bytes of segments."""
        return fits(self._first, limit, sizes=self.sizes(batch))

    def trace(self, batch: int) -> Trace:
        """The trace at `batch` by the straight line through each allocation's two sizes."""
        resized = zip(self._first.events, self.sizes(batch), strict=True)
        events = [event._replace(nbytes=nbytes) for event, nbytes in resized]
        first = self._first
        return Trace(events, first.steady, first.host, first.attention, first.notes, first.math_attention)


def budget_bytes(
    budget: str | int | None = None, gpu: str | Gpu | None = None, context: str | int = CONTEXT
) -> tuple[int, Gpu | None]:
    """What PyTorch's allocator may take, and the card.

    `budget` is that itself; with only `gpu` it is the card's usable memory less CUDA's context. Raises ValueError where
    neither is given or nothing is left.
    """
    card = None if gpu is None else as_gpu(gpu)
    if budget is not None:
        size = parse_bytes(budget)
    elif card is not None:
        size = card.usable - parse_bytes(context)
    else:
        raise ValueError("a plan needs a budget, such as '12 GB', or a gpu, such as 'RTX 3060'")
    if size <= 0:
        raise ValueError(f"budget {budget!r} leaves no memory to train in")
    return size, card


def max_batch(
    workload: Workload,
    budget: str | int | None = None,
    *,
    precision: str = "32-true",
    checkpointing: str = "none",
    gpu: str | Gpu | None = None,
    context: str | int = CONTEXT,
    device: str = "cuda",
) -> Fit:
    """The largest batch of `workload` whose step runs when the allocator may take `budget` ("12 GB"), and what limits it.

    `budget` is for tensors and segments; CUDA's context comes on top of it. With `gpu` alone the budget is what that card
    leaves. Raises ValueError as `predict` and `budget_bytes` do.
    """
    size, card = budget_bytes(budget, gpu, context)
    tries: dict[int, Prediction] = {}

    def at(batch: int) -> Prediction:
        if batch not in tries:
            tries[batch] = predict(
                workload,
                batch,
                precision=precision,
                checkpointing=checkpointing,
                device=device,
                gpu=card if device == "cuda" else None,
                context=context,
            )
        return tries[batch]

    curve = BatchCurve(at(PROBES[0]).trace, at(PROBES[1]).trace)

    def fits_at(batch: int) -> bool:
        by_line = curve.exact and batch >= PROBES[0]
        return curve.fits(batch, size) if by_line else fits(at(batch).trace, size)

    # From 2 up the search costs no trace; whether a single example fits is asked only where two do not.
    batch = _search(fits_at, start=PROBES[0]) or int(fits_at(1))
    batch = _checked(batch, at, size) if batch else 0
    best = at(batch) if batch else None
    beyond = _beyond(curve, at, batch + 1)
    broken_up = "fragmentation; then " if beyond.allocated_peak <= size else ""
    return Fit(batch, size, best, broken_up + beyond.limited_by, len(tries))


def _search(fits_at: Callable[[int], bool], *, start: int) -> int:
    """The largest n from `start` for which `fits_at(n)`, taking it that more never fits better; 0 where `start` does not."""
    low, high = 0, start
    while high <= LARGEST and fits_at(high):
        low, high = high, 2 * high
    if high > LARGEST:
        raise ValueError(f"a batch of {LARGEST:,} still fits: the memory of this workload does not grow with its batch")
    while low and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits_at(middle) else (low, middle)
    return low


def _checked(batch: int, at: Callable[[int], Prediction], size: int) -> int:
    """`batch`, or the nearest that a real prediction confirms: it fits there and not one further up."""
    while batch and not fits(at(batch).trace, size):
        batch -= 1
    return batch


def _beyond(curve: BatchCurve, at: Callable[[int], Prediction], batch: int) -> Prediction:
    known = at(PROBES[0])
    if not curve.exact or batch < PROBES[0]:
        return at(batch)
    return from_trace(
        curve.trace(batch),
        name=known.name,
        batch_size=batch,
        precision=known.precision,
        checkpointing=known.checkpointing,
        gpu=known.gpu,
        device=known.device,
        context=known.context,
    )


def compare(
    workload: Workload,
    batches: Iterable[int] = (8,),
    *,
    precisions: Sequence[str] = ("32-true", "bf16-mixed", "bf16-true"),
    checkpointings: Sequence[str] = ("none", "full"),
    gpu: str | Gpu | None = None,
    device: str = "cuda",
    progress: Callable[[Any], Any] = iter,
) -> pd.DataFrame:
    """Predictions over precision x checkpointing x batch, one row each, sizes in bytes.

    `styled(frame)` shows it in GiB with bars; `labkit.memory.figures.bars` draws it against a card.
    """
    cases = [(p, c, n) for p in precisions for c in checkpointings for n in batches]
    rows = []
    for setting, policy, batch in progress(cases):
        found = predict(workload, batch, precision=setting, checkpointing=policy, gpu=gpu, device=device)
        rows.append(
            {
                "precision": as_precision(setting).name,
                "checkpointing": policy,
                "batch": batch,
                "attention": found.attention_kernels,
                **found.by_category,
                "live_peak": found.live_peak,
                "allocated_peak": found.allocated_peak,
                "reserved_peak": found.reserved_peak,
                "nvidia_smi": found.nvidia_smi,
                "limited_by": found.limited_by,
            }
        )
    return pd.DataFrame(rows)


def styled(frame: pd.DataFrame, *, budget: str | int | None = None) -> Any:
    """A table of `compare` or `plan` in GiB (2^30 bytes), bars behind the peaks, what exceeds `budget` in bold with a mark."""
    sizes = [name for name in frame.columns if pd.api.types.is_integer_dtype(frame[name]) and "batch" not in name]
    shown = frame.assign(**{name: frame[name] / UNITS["GiB"] for name in sizes})
    limit = None if budget is None else parse_bytes(budget) / UNITS["GiB"]
    style = shown.style.format("{:.2f}", subset=sizes).hide(axis="index")
    peak = "allocated_peak" if "allocated_peak" in shown else "peak_bytes"
    style = style.bar(subset=[peak], color="#56B4E966", vmin=0).set_caption("Sizes in GiB (2^30 bytes).")
    if limit is None:
        return style
    return style.format("{:.2f}", subset=[s for s in sizes if s != peak]).format(
        lambda size: f"{size:.2f} ✗" if size > limit else f"{size:.2f}", subset=[peak]
    )


def plan(
    workload: Workload,
    budget: str | int | None = None,
    *,
    precisions: Sequence[str] = ("32-true", "bf16-mixed", "bf16-true"),
    checkpointings: Sequence[str] = ("none", "selective", "full"),
    gpu: str | Gpu | None = None,
    context: str | int = CONTEXT,
    progress: Callable[[Any], Any] = iter,
) -> pd.DataFrame:
    """The largest batch for each precision and checkpointing, one row each.

    Columns: precision, checkpointing, attention, max_batch, peak_bytes (allocated, at that batch), limited_by (what stops the
    next).
    """
    cases = [(setting, policy) for setting in precisions for policy in checkpointings]
    return as_plan(plan_row(workload, case, budget, gpu=gpu, context=context) for case in progress(cases))


#: A row of a plan, and why attention runs on the math kernel there, if it does.
Row = tuple[dict[str, Any], str | None]


def plan_row(
    workload: Workload,
    case: tuple[str, str],
    budget: str | int | None = None,
    *,
    gpu: str | Gpu | None = None,
    context: str | int = CONTEXT,
) -> Row:
    """One row of `plan`, for the (precision, checkpointing) in `case`: rows may be worked out in any process."""
    setting, policy = case
    fit = max_batch(workload, budget, precision=setting, checkpointing=policy, gpu=gpu, context=context)
    row = {
        "precision": as_precision(setting).name,
        "checkpointing": policy,
        "attention": fit.prediction.attention_kernels if fit.prediction else "-",
        "max_batch": fit.batch,
        "peak_bytes": fit.peak_bytes,
        "limited_by": fit.limited_by,
    }
    choices = fit.prediction.attention if fit.prediction else ()
    return row, next((choice.reason for choice in choices if choice.backend == "math"), None)


def as_plan(rows: Iterable[Row]) -> pd.DataFrame:
    """The table that `rows` make; `advice` reads it."""
    rows = list(rows)
    table = pd.DataFrame([row for row, _ in rows])
    table.attrs["math_reason"] = next((reason for _, reason in rows if reason), None)
    return table


def advice(table: pd.DataFrame) -> list[str]:
    """What to change first, from a plan: the change that raises the largest batch most, one sentence each, best first."""
    base = table.iloc[0]
    found = []
    if table.attrs.get("math_reason"):
        found.append(f"attention runs on the math kernel, because {table.attrs['math_reason']}")
    alone = [
        (row["max_batch"], f"{row['precision']}, checkpointing {row['checkpointing']}")
        for _, row in table.iloc[1:].iterrows()
        if (row["precision"] == base["precision"]) != (row["checkpointing"] == base["checkpointing"])
    ]
    for batch, change in sorted(alone, reverse=True)[:3]:
        if batch > base["max_batch"]:
            found.append(f"{change}: batch {base['max_batch']} becomes {batch}")
    best = table.loc[table["max_batch"].idxmax()]
    if best["max_batch"] > base["max_batch"]:
        found.append(
            f"most of all: {best['precision']} with checkpointing {best['checkpointing']} takes batch {best['max_batch']} "
            f"at {format_bytes(best['peak_bytes'])}"
        )
    return found or ["nothing in this table beats the first row: make the model, the sequence or the vocabulary smaller"]
