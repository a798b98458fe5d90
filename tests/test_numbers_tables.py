"""Tables of facts: the formats side by side, and what hardware computes in."""

import hashlib

import ml_dtypes
import numpy as np
import pytest

from labkit.numbers import FORMATS
from labkit.numbers.support import MEANING, SUPPORT_FORMATS, hardware_rows, hardware_table, supporting
from labkit.numbers.table import binades, format_table
from labkit.resources import data_file


def test_format_table_states_what_numpy_and_ml_dtypes_state() -> None:
    table = format_table()
    assert list(table.index) == list(FORMATS)
    for name, dtype in {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}.items():
        info = ml_dtypes.finfo(dtype)
        row = table.loc[name]
        assert (row["largest"], row["smallest normal"], row["smallest positive"], row["eps"]) == (
            float(info.max),
            float(info.smallest_normal),
            float(info.smallest_subnormal),
            float(info.eps),
        )
        assert row["decimal digits"] == info.precision
    assert table.loc["fp8_e4m3fn", ["infinity", "NaN", "negative zero"]].tolist() == [False, True, True]


def test_binades_are_those_of_the_standard() -> None:
    assert binades("fp16") == (-24, -14, 15)
    assert binades("bf16") == (-133, -126, 127)
    assert binades("fp64") == (-1074, -1022, 1023)
    assert binades("e8m0") == (-127, -127, 127)


def test_every_hardware_row_has_its_source_and_known_words() -> None:
    rows = hardware_rows()
    assert len({row["device"] for row in rows}) == len(rows) >= 15
    for row in rows:
        assert row["source"].startswith("https://"), row["device"]
        assert {row[name] for name in SUPPORT_FORMATS} <= {"matrix", "vector", "emulated", "absent", ""}
        for name in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4"):
            if row[f"peak_{name}"] is not None:
                assert row[name] in ("matrix", "vector"), (row["device"], name)
    assert {row["vendor"] for row in rows} >= {"NVIDIA", "AMD", "Google", "Apple", "Intel"}


def test_the_facts_that_the_course_leans_on() -> None:
    table = hardware_table()
    assert table.loc["T4", "bf16"] == "emulated" and table.loc["T4", "fp16"] == "matrix"
    assert table.loc["A100 SXM 80GB", "fp8"] == "absent" and table.loc["H100 SXM", "fp8"] == "matrix"
    nvidia = table[table["vendor"] == "NVIDIA"]
    assert nvidia[nvidia["fp4"] == "matrix"]["architecture"].str.startswith("Blackwell").all()
    assert {"B200 (HGX)", "GeForce RTX 5090"} <= set(supporting("fp4"))


def test_the_running_machine_comes_first() -> None:
    table = hardware_table({"fp32": "native", "bf16": "emulated", "fp8": "absent"}, name="my laptop")
    assert table.index[0] == "my laptop" and len(table) == len(hardware_rows()) + 1
    assert table.iloc[0][["fp32", "bf16", "fp8", "fp4"]].tolist() == ["native", "emulated", "absent", ""]
    assert set(table[list(SUPPORT_FORMATS)].to_numpy().flatten()) <= set(MEANING)


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="'fp12' is no column of the table; there are: fp64"):
        supporting("fp12")
    with pytest.raises(ValueError, match=r"live reports on \['int8'\]"):
        hardware_table({"int8": "native"})


def test_the_described_checksum_is_the_file_s() -> None:
    digest = hashlib.sha256(data_file("hardware_formats.csv").read_bytes()).hexdigest()
    assert digest in data_file("README.md").read_text(encoding="utf-8")
