"""Which hardware computes in which format: the table of `data/hardware_formats.csv`, and this machine beside it."""

import csv
from collections.abc import Mapping
from typing import Any

from labkit.resources import data_file

#: Columns of the table that hold a format's support.
SUPPORT_FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4")

#: What the words in those columns mean. A word that a live report adds ("native") means matrix or vector.
MEANING = {
    "matrix": "multiplied in matrix units (tensor cores, matrix cores, AMX, MXU), at the format's full speed",
    "vector": "computed natively, without matrix units",
    "native": "computed natively, as found on this machine",
    "emulated": "computed by way of another format: memory may be saved, time is not",
    "absent": "no arithmetic in this format",
    "": "not stated by the maker",
}

_NUMBERS = ("memory_gb", "bandwidth_gb_s", "peak_fp32", "peak_tf32", "peak_bf16", "peak_fp16", "peak_fp8", "peak_fp4")


def hardware_rows() -> list[dict[str, Any]]:
    """The rows of the table. Memory is in the makers' GB (2^30 bytes), bandwidth in 10^9 bytes a second, peaks in 10^12
    floating-point operations a second without sparsity; None where the maker states none."""
    with data_file("hardware_formats.csv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row.update({name: float(row[name]) if row[name] else None for name in _NUMBERS})
    return rows


def hardware_table(live: Mapping[str, str] | None = None, *, name: str = "this machine") -> Any:
    """The table as a pandas DataFrame indexed by device; with `live`, this machine's row comes first.

    `live` maps formats to words, as a report on the running machine gives them ("native", "emulated", "absent"); formats it
    does not speak of stay empty.
    """
    import pandas as pd

    rows = hardware_rows()
    if live is not None:
        unknown = set(live) - set(SUPPORT_FORMATS)
        if unknown:
            raise ValueError(f"live reports on {sorted(unknown)}, which are not among {', '.join(SUPPORT_FORMATS)}")
        blank: dict[str, Any] = {column: None if column in _NUMBERS else "" for column in rows[0]}
        rows.insert(0, blank | dict(live) | {"device": name, "note": "found live", "source": "this machine"})
    frame = pd.DataFrame(rows).set_index("device")
    return frame.astype(dict.fromkeys(_NUMBERS, float))


def supporting(fmt: str) -> list[str]:
    """The devices whose matrix units take `fmt`, a column of the table; ValueError lists those there are."""
    if fmt not in SUPPORT_FORMATS:
        raise ValueError(f"{fmt!r} is no column of the table; there are: {', '.join(SUPPORT_FORMATS)}")
    return [row["device"] for row in hardware_rows() if row[fmt] == "matrix"]
