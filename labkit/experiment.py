"""The training matrix: every precision setting under every checkpointing policy, one row a run, kept in a CSV.

A row costs one training run and one measured step. Rows that a CSV already holds for this scale, text and device are not run
again, and the file is replaced whole after each run, so a run that is killed loses one row at most.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import hardware
from labkit.memory import measure_workload
from labkit.progress import progress
from labkit.scale import Scale, as_scale, current
from labkit.techniques.checkpointing import parse_policy
from labkit.techniques.precision import as_precision
from labkit.training import TrainConfig, train, workload

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "16-mixed-unscaled", "bf16-true", "16-true")
CHECKPOINTINGS = ("none", "full", "sqrt", "selective")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries", "inputs")

#: What tells one run from another.
KEY = ["scale", "device", "data", "precision", "checkpointing", "seed"]
COLUMNS = [
    *KEY,
    "status",
    "train_loss",
    "val_loss",
    "tokens_per_s",
    "step_ms",
    "peak_bytes",
    *CATEGORIES,
    "recompute_overhead",
]
CURVE_COLUMNS = [*KEY, "step", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cell of the matrix for one seed."""

    scale: Scale
    device: str
    data: str
    precision: str
    checkpointing: str
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY` that name this run's row."""
        return (self.scale.name, self.device, self.data, self.precision, self.checkpointing, self.seed)

    @property
    def label(self) -> str:
        return f"{self.precision} · {self.checkpointing} · seed {self.seed}"


def matrix(
    precisions: Sequence[str] = PRECISIONS,
    checkpointings: Sequence[str] = CHECKPOINTINGS,
    seeds: int | Sequence[int] | None = None,
    scale: str | Scale | None = None,
    *,
    out: str | Path | None = None,
    data: str = "python",
) -> pd.DataFrame:
    """Train the course's transformer once a setting, policy and seed; return one row a run, `COLUMNS` wide.

    Losses in nats per token, times in ms, peaks in bytes of the second step. `recompute_overhead` is the step's time over that
    of the same precision and seed without checkpointing, less one. A run that diverges is a row with status `diverged`.
    `seeds` is a count or the seeds themselves (default: the scale's). `out` names the CSV to resume from and keep; the loss
    curves go beside it (`curves_path`).

    Raises ValueError for an unknown setting, policy, scale or text, for no seeds, and for a CSV that is not a matrix.
    """
    runs = plan(precisions, checkpointings, seeds, scale, data=data)
    results = Results(Path(out) if out is not None else None)
    todo = [run for run in runs if run.key not in results]
    bar = progress(total=len(todo), label="training matrix")
    for run in todo:
        bar.set_description(run.label)
        results.add(*_carry_out(run, results))
        bar.update()
    bar.close()
    return results.rows_of(runs)


def plan(
    precisions: Sequence[str],
    checkpointings: Sequence[str],
    seeds: int | Sequence[int] | None,
    scale: str | Scale | None,
    *,
    data: str = "python",
) -> list[Run]:
    """The runs of a matrix in the order they are carried out, seed by seed, with every argument checked."""
    for name in precisions:
        as_precision(name)
    for policy in checkpointings:
        parse_policy(policy)
    chosen = as_scale(scale) if isinstance(scale, str) else scale or current()
    listed = _seeds(chosen.seeds if seeds is None else seeds)
    device = hardware.device().type
    return [
        Run(scale=chosen, device=device, data=data, precision=precision, checkpointing=checkpointing, seed=seed)
        for seed, precision, checkpointing in product(listed, precisions, checkpointings)
    ]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise ValueError(f"seeds {seeds} is too few: a matrix needs at least 1")
        return list(range(seeds))
    if not seeds:
        raise ValueError("seeds [] is too few: a matrix needs at least 1")
    return list(seeds)


def _carry_out(run: Run, results: "Results") -> tuple[dict[str, Any], pd.DataFrame]:
    """Train and measure one run: its row and its loss curve."""
    config = TrainConfig(
        workload=workload(run.scale.preset, data=run.data),
        precision=run.precision,
        checkpointing=run.checkpointing,
        steps=run.scale.steps,
        batch_size=run.scale.batch_size,
        seed=run.seed,
    )
    result = train(config)
    row = dict(zip(KEY, run.key, strict=True)) | {
        "status": result.status,
        "train_loss": result.train_loss,
        "val_loss": result.val_loss,
        "tokens_per_s": result.tokens_per_s,
        "step_ms": result.step_ms,
    }
    row |= results.memory_of(run) or _measured(config)
    curve = result.history[["step", "loss"]].assign(**dict(zip(KEY, run.key, strict=True)))
    return row, curve[CURVE_COLUMNS]


def _measured(config: TrainConfig) -> dict[str, int]:
    """Peak bytes of a steady step and what they are made of."""
    report = measure_workload(
        config.workload, config.batch_size, precision=config.precision, checkpointing=config.checkpointing
    )
    return {"peak_bytes": report.peak_bytes} | {name: report.by_category[name] for name in CATEGORIES}


def curves_path(path: str | Path) -> Path:
    """Where the loss curves of the matrix in `path` are kept: `NAME.curves.csv` beside `NAME.csv`."""
    return Path(path).with_suffix(".curves.csv")


def read_matrix(path: str | Path) -> pd.DataFrame:
    """The rows of a matrix's CSV.

    Raises FileNotFoundError where there is none, and ValueError naming what is missing for a file that is not a matrix.
    """
    frame = _read(Path(path), COLUMNS)
    return frame


def read_curves(path: str | Path) -> pd.DataFrame:
    """The loss curves of the matrix in `path`: one row a run and step, `CURVE_COLUMNS` wide; errors as `read_matrix`."""
    return _read(curves_path(path), CURVE_COLUMNS)


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}; make one with: python -m labkit matrix --out {path.name}")
    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is not a CSV of the training matrix: {str(error).strip()}") from None
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"{str(path)!r} is not a CSV of the training matrix: column {missing[0]!r} is missing")
    return frame[list(columns)]


class Results:
    """The finished rows and curves of a matrix, in memory and, given a path, in two CSV files replaced whole."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        there = path is not None and path.exists()
        self.rows = read_matrix(path) if there and path else pd.DataFrame(columns=COLUMNS)
        there = path is not None and curves_path(path).exists()
        self.curves = read_curves(path) if there and path else pd.DataFrame(columns=CURVE_COLUMNS)
        self._keys = set(self._iterate_keys())

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._keys

    def add(self, row: dict[str, Any], curve: pd.DataFrame) -> None:
        """Keep one finished run; the curve is written first, so that a row in the file always has one."""
        self.rows = _append(self.rows, pd.DataFrame([row]).reindex(columns=COLUMNS))
        self.rows["recompute_overhead"] = _overheads(self.rows)
        self.curves = _append(self.curves, curve)
        self._keys.add(tuple(row[name] for name in KEY))
        if self.path is not None:
            _replace(curves_path(self.path), self.curves)
            _replace(self.path, self.rows)

    def memory_of(self, run: Run) -> dict[str, int] | None:
        """The bytes of a finished run that differs in its seed alone: memory does not depend on the values."""
        if self.rows.empty:
            return None
        same = self.rows[KEY[:-1]].eq(list(run.key[:-1])).all(axis=1)
        if not same.any():
            return None
        return {name: int(self.rows.loc[same, name].iloc[0]) for name in ("peak_bytes", *CATEGORIES)}

    def rows_of(self, runs: Sequence[Run]) -> pd.DataFrame:
        """The rows of `runs`, in their order."""
        place = {key: index for index, key in enumerate(self._iterate_keys())}
        return self.rows.iloc[[place[run.key] for run in runs]].reset_index(drop=True)

    def _iterate_keys(self) -> Iterator[tuple[Any, ...]]:
        return self.rows[KEY].itertuples(index=False, name=None)


def _append(frame: pd.DataFrame, more: pd.DataFrame) -> pd.DataFrame:
    return more.reset_index(drop=True) if frame.empty else pd.concat([frame, more], ignore_index=True)


def _overheads(rows: pd.DataFrame) -> pd.Series:
    """Time of each row over that of its twin without checkpointing, less one; NaN while there is no twin."""
    twin = [name for name in KEY if name != "checkpointing"]
    plain = rows[rows["checkpointing"] == "none"].drop_duplicates(twin).set_index(twin)["step_ms"]
    index = pd.MultiIndex.from_frame(rows[twin])
    return pd.Series(rows["step_ms"].to_numpy(float) / plain.reindex(index).to_numpy(float) - 1, index=rows.index)


def _replace(path: Path, frame: pd.DataFrame) -> None:
    """Write `frame` so that a reader, or a run that is killed, finds the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with draft.open("w", encoding="utf-8", newline="") as file:
        frame.to_csv(file, index=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a precision and policy: means over the seeds, spread of the loss over them, peak in MB (10^6 bytes)."""
    groups = frame.groupby(["precision", "checkpointing"], sort=False)
    table = groups.agg(
        runs=("seed", "size"),
        diverged=("status", lambda status: int((status == "diverged").sum())),
        val_loss=("val_loss", "mean"),
        spread=("val_loss", lambda loss: loss.max() - loss.min()),
        tokens_per_s=("tokens_per_s", "mean"),
        recompute_overhead=("recompute_overhead", "mean"),
        peak_mb=("peak_bytes", lambda peak: peak.mean() / 1e6),
    )
    return table.reset_index()


def styled(frame: pd.DataFrame) -> Any:
    """`summary(frame)` as a pandas Styler with units in the header and bars for loss and peak."""
    names = {
        "val_loss": "validation loss (nats per token)",
        "spread": "spread over seeds",
        "tokens_per_s": "tokens per second",
        "recompute_overhead": "extra time for recomputation",
        "peak_mb": "peak (MB)",
    }
    formats = {
        names["val_loss"]: "{:.3f}",
        names["spread"]: "{:.3f}",
        names["tokens_per_s"]: "{:,.0f}",
        names["recompute_overhead"]: "{:+.0%}",
        names["peak_mb"]: "{:,.1f}",
    }
    table = summary(frame).rename(columns=names)
    return table.style.format(formats, na_rep="–").bar(subset=[names["peak_mb"]], color="#56B4E966", vmin=0).hide(axis="index")
