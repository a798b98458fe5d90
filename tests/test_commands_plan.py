"""`plan`, `validate` and `calibrate` as a reader types them."""

import csv
import io
import json
import textwrap

import pytest

from labkit.__main__ import main, parser
from labkit.commands import plan
from labkit.commands.plan import ATTENTION
from labkit.memory import calibration

QUICK = ["--preset", "tiny", "--memory", "60MB", "--precision", "32-true", "bf16-true", "--checkpointing", "none"]
COLUMNS = ["precision", "checkpointing", "attention", "max_batch", "peak_bytes", "limited_by"]


@pytest.fixture(autouse=True)
def no_bar(monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", "0")


def test_the_table_names_its_units_its_margin_and_what_to_change(capsys):
    assert main(["plan", *QUICK]) == 0
    shown = capsys.readouterr().out
    for part in (
        "57.22 MiB (0.06 GB)",
        "peak (GiB)",
        "What to change first",
        "bf16-true, checkpointing none: batch",
        "give or take",
    ):
        assert part in shown


def test_json_and_csv_hold_the_same_rows(capsys):
    assert main(["plan", *QUICK, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [COLUMNS] * 2
    assert main(["plan", *QUICK, "--csv"]) == 0
    again = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["max_batch"] for row in again] == [str(row["max_batch"]) for row in rows]
    assert rows[1]["max_batch"] > rows[0]["max_batch"] > 0


def test_attention_flash_takes_the_mask_away(capsys):
    options = ["--precision", "bf16-true", "--checkpointing", "none", "--json", "--seq", "32"]
    kernels = {}
    for attention in ("flash", "math"):
        assert main(["plan", "--preset", "tiny", "--memory", "60MB", "--attention", attention, *options]) == 0
        kernels[attention] = json.loads(capsys.readouterr().out)[0]["attention"]
    assert kernels == {"flash": "flash", "math": "math"}


def test_a_workload_of_ones_own_is_planned(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            import torch
            from torch import nn
            from labkit.workload import Workload
            small = Workload(
                model=lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)),
                batch=lambda n: torch.randn(4096 * n, 8),
                loss=lambda model, batch: model(batch).mean(),
                name="small",
            )
            number = 3
        """)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--model", "mine:small", "--memory", "80MB", "--precision", "32-true", "--checkpointing", "none"]) == 0
    assert capsys.readouterr().out.startswith("small: what fits")
    assert main(["plan", "--model", "mine:number", "--memory", "80MB"]) == 2
    assert "is a int, not a labkit.workload.Workload" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "12"], "size '12' has no unit"),
        (["--memory", "12G"], "which may mean GB or GiB"),
        (["--memory=-1GB"], "a size cannot be negative"),
        (["--memory", "-1GB"], "a size cannot be negative"),
        (["--gpu", "RTX 9999"], "GPU 'RTX 9999' is not in data/gpus.csv"),
        (["--memory", "1GB", "--preset", "huge"], "preset 'huge' is unknown"),
        (["--memory", "1GB", "--model", "nowhere.at.all:thing"], "does not import"),
        (["--memory", "1GB", "--model", "nonsense"], "not of the form package.module:name"),
        (["--memory", "1GB", "--precision", "8-true"], "precision '8-true' is not one of"),
        (["--memory", "1GB", "--checkpointing", "half"], "checkpointing 'half' is not one of"),
        (["--memory", "1GB", "--seq", "0"], "sequence must be at least 1, not 0"),
        ([], "a plan needs a budget"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_status_2(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0


def test_validate_prints_the_rows_that_are_asked_for(capsys):
    assert main(["validate", "korth-none"]) == 0
    assert "saved bytes per layer" in capsys.readouterr().out
    assert main(["validate", "nothing"]) == 2
    assert "published figure 'nothing' is unknown" in capsys.readouterr().err


def test_calibrate_measures_24_configurations_unless_told_otherwise():
    arguments = parser().parse_args(["calibrate"])
    settings = len(arguments.batches) * len(calibration.PRECISIONS) * len(calibration.CHECKPOINTINGS)
    assert settings * len(ATTENTION) >= 24


def test_calibrate_writes_its_record(tmp_path, capsys):
    where = tmp_path / "record.json"
    assert main(["calibrate", "--device", "cpu", "--preset", "tiny", "--batches", "1", "--out", str(where)]) == 0
    record = json.loads(where.read_text())
    assert record["device"] == "cpu" and len(record["rows"]) == 12
    assert "12 configurations, mean absolute error" in capsys.readouterr().out


def test_rows_from_several_processes_are_those_of_one(monkeypatch, capsys):
    tables = []
    for rows in (2, 99):
        monkeypatch.setattr(plan, "ROWS_FOR_PROCESSES", rows)
        assert main(["plan", *QUICK, "--json"]) == 0
        tables.append(json.loads(capsys.readouterr().out))
    assert tables[0] == tables[1]
