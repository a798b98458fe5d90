"""Predicted beside measured: run configurations on the device at hand and keep what its allocator recorded."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from labkit.memory.meter import measure_workload
from labkit.memory.prediction import predict
from labkit.resources import data_file
from labkit.techniques.step import TrainingStep
from labkit.workload import Workload, to_device

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
CHECKPOINTINGS = ("none", "full")


@dataclass(frozen=True)
class Record:
    """What one machine measured: its device, its torch, and one row a configuration (sizes in bytes)."""

    device: str
    card: str
    torch: str
    driver: str
    rows: list[dict[str, Any]]

    def frame(self) -> pd.DataFrame:
        """The rows, with the error of the prediction in percent."""
        table = pd.DataFrame(self.rows)
        table["error_percent"] = 100 * (table["predicted"] / table["measured"] - 1)
        return table

    def sentence(self) -> str:
        """One line: the card, how many configurations, mean absolute error, worst and bias."""
        errors = self.frame()["error_percent"]
        worst = errors.loc[errors.abs().idxmax()]
        return (
            f"{self.card} (torch {self.torch}): {len(errors)} configurations, mean absolute error {errors.abs().mean():.2f} %, "
            f"worst {worst:+.2f} %, bias {errors.mean():+.2f} %"
        )

    def save(self, path: Path) -> None:
        """Write the record as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """The record in a file; ValueError where it is not one."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{path} is not a record of labkit calibrate: {error}") from None


def records() -> list[Record]:
    """Every record under `data/measured/`, by file name; an empty list where nothing was measured yet."""
    folder = data_file("published_memory.csv").parent / "measured"
    return [load(path) for path in sorted(folder.glob("*.json"))]


def default_path(record: Record) -> Path:
    """Where a record goes in a checkout: `data/measured/CARD-torchVERSION.json`."""
    card = "".join(letter if letter.isalnum() else "-" for letter in record.card.lower())
    folder = data_file("published_memory.csv").parent / "measured"
    return folder / f"{card}-torch{record.torch.split('+')[0]}.json"


def calibrate(
    workloads: Mapping[str, Workload],
    *,
    batches: Sequence[int],
    device: str,
    precisions: Sequence[str] = PRECISIONS,
    checkpointings: Sequence[str] = CHECKPOINTINGS,
    progress: Callable[[Any], Any] = iter,
) -> Record:
    """Measure and predict every precision x checkpointing x batch x workload on `device` ("cuda" or "cpu").

    On CUDA `measured` is `max_memory_allocated`, and reserved memory and what NVML reports stand beside it; on a CPU it is the
    profiler's record of the allocator. Raises ValueError for another device, or for "cuda" where there is none.
    """
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device {device!r} cannot be calibrated; choose 'cuda' or 'cpu'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' cannot be calibrated: this machine has no CUDA device")
    cases = [(w, p, c, n) for w in workloads for p in precisions for c in checkpointings for n in batches]
    measure = _on_cuda if device == "cuda" else _on_cpu
    rows = []
    for kind, precision, checkpointing, batch in progress(cases):
        row = {"attention": kind, "precision": precision, "checkpointing": checkpointing, "batch": batch}
        rows.append(row | measure(workloads[kind], batch, precision=precision, checkpointing=checkpointing))
    card = torch.cuda.get_device_name() if device == "cuda" else platform.machine() + " CPU"
    driver = torch.version.cuda or "" if device == "cuda" else ""
    return Record(device, card, torch.__version__, driver, rows)


def _on_cpu(workload: Workload, batch: int, *, precision: str, checkpointing: str) -> dict[str, int]:
    report = measure_workload(workload, batch, precision=precision, checkpointing=checkpointing, device="cpu")
    predicted = predict(workload, batch, precision=precision, checkpointing=checkpointing, device="cpu")
    assert report.allocator is not None
    return {"predicted": predicted.live_peak, "tracked": report.peak_bytes, "measured": report.allocator.peak_bytes}


def _on_cuda(workload: Workload, batch: int, *, precision: str, checkpointing: str) -> dict[str, int]:
    from labkit.memory.gpus import Gpu

    capability = torch.cuda.get_device_capability()
    total = torch.cuda.get_device_properties(0).total_memory
    card = Gpu(torch.cuda.get_device_name(), total, total, "reported", 0, "", capability, "this machine", "this machine")
    predicted = predict(workload, batch, precision=precision, checkpointing=checkpointing, gpu=card)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = TrainingStep(workload, precision=precision, checkpointing=checkpointing, device="cuda")
    data = step.precision.cast(to_device(workload.batch(batch), step.device))
    for _ in range(3):
        step(data)
    torch.cuda.synchronize()
    free, everything = torch.cuda.mem_get_info()
    measured = {
        "predicted": predicted.allocated_peak,
        "measured": torch.cuda.max_memory_allocated(),
        "predicted_reserved": predicted.reserved_peak,
        "measured_reserved": torch.cuda.max_memory_reserved(),
        "predicted_smi": predicted.nvidia_smi,
        "measured_smi": everything - free,
    }
    step.checkpointing.remove()
    return measured
