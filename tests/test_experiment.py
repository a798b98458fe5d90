"""The training matrix: its rows, its file, and what it refuses."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import experiment, plots
from labkit.experiment import COLUMNS, matrix, read_curves, read_matrix
from labkit.scale import Scale

SMALL = Scale(name="ci", preset="tiny", steps=3, batch_size=2, seeds=1)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real matrix of two settings, two policies and two seeds, kept in a file."""
    path = tmp_path_factory.mktemp("matrix") / "matrix.csv"
    matrix(["32-true", "bf16-true"], ["none", "full"], 2, SMALL, out=path)
    return path


def test_a_row_is_a_run_with_every_column(real: Path) -> None:
    frame = read_matrix(real)
    assert list(frame.columns) == COLUMNS and len(frame) == 8
    assert set(frame["status"]) == {"ok"} and frame[["train_loss", "val_loss"]].notna().all(axis=None)
    assert (frame["tokens_per_s"] > 0).all() and (frame["step_ms"] > 0).all()


def test_the_categories_of_a_row_add_up_to_its_peak(real: Path) -> None:
    frame = read_matrix(real)
    assert (frame[list(experiment.CATEGORIES)].sum(axis=1) == frame["peak_bytes"]).all()
    assert set(plots.CATEGORIES) == set(experiment.CATEGORIES)


def test_bf16_needs_less_and_checkpointing_needs_less(real: Path) -> None:
    peak = read_matrix(real).groupby(["precision", "checkpointing"])["peak_bytes"].first()
    assert peak["bf16-true", "none"] < 0.65 * peak["32-true", "none"]
    assert peak["32-true", "full"] < peak["32-true", "none"]


def test_checkpointing_changes_no_loss_in_fp32(real: Path) -> None:
    frame = read_matrix(real)
    losses = frame[frame["precision"] == "32-true"].groupby("seed")["val_loss"].nunique()
    assert (losses == 1).all()


def test_seeds_differ(real: Path) -> None:
    assert read_matrix(real).groupby(["precision", "checkpointing"])["val_loss"].nunique().eq(2).all()


def test_every_row_has_a_curve(real: Path) -> None:
    curves = read_curves(real)
    assert len(curves) == 8 * SMALL.steps
    assert curves.groupby(experiment.KEY)["step"].nunique().eq(SMALL.steps).all()


def test_overhead_is_time_over_the_twin_without_checkpointing(real: Path) -> None:
    frame = read_matrix(real).set_index(["precision", "checkpointing", "seed"])
    plain, full = frame.loc[("32-true", "none", 1)], frame.loc[("32-true", "full", 1)]
    assert plain["recompute_overhead"] == 0
    assert full["recompute_overhead"] == pytest.approx(full["step_ms"] / plain["step_ms"] - 1)


def test_a_finished_row_is_not_run_again(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("ran a finished row again")

    monkeypatch.setattr(experiment, "_carry_out", never)
    before = real.read_bytes()
    frame = matrix(["bf16-true"], ["full"], [1], SMALL, out=real)
    assert len(frame) == 1 and real.read_bytes() == before


def fake(run: experiment.Run, results: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """A run that costs nothing."""
    row = dict(zip(experiment.KEY, run.key, strict=True)) | dict.fromkeys(COLUMNS[len(experiment.KEY) :], 1)
    curve = pd.DataFrame([{**dict(zip(experiment.KEY, run.key, strict=True)), "step": 0, "loss": 1.0}])
    return row | {"status": "ok"}, curve


def test_a_killed_matrix_keeps_what_it_had_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "matrix.csv"
    done: list[experiment.Run] = []

    def killed_at_third(run: experiment.Run, results: Any) -> tuple[dict[str, Any], pd.DataFrame]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(run)
        return fake(run, results)

    monkeypatch.setattr(experiment, "_carry_out", killed_at_third)
    with pytest.raises(KeyboardInterrupt):
        matrix(["32-true"], ["none", "full", "sqrt"], 2, SMALL, out=path)
    assert len(read_matrix(path)) == len(read_curves(path)) == 2
    done.clear()
    monkeypatch.setattr(experiment, "_carry_out", lambda run, results: (done.append(run), fake(run, results))[1])
    frame = matrix(["32-true"], ["none", "full", "sqrt"], 2, SMALL, out=path)
    assert len(done) == 4 and len(frame) == 6
    assert not list(tmp_path.glob("*.tmp"))


def test_rows_of_another_scale_are_kept_and_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_carry_out", fake)
    path = tmp_path / "matrix.csv"
    matrix(["32-true"], ["none"], 1, SMALL, out=path)
    frame = matrix(["32-true"], ["none"], 1, "laptop", out=path)
    assert list(frame["scale"]) == ["laptop"] and list(read_matrix(path)["scale"]) == ["ci", "laptop"]


def test_a_run_that_diverges_is_a_row() -> None:
    frame = matrix(["16-true"], ["none"], 1, Scale(name="ci", preset="tiny", steps=12, batch_size=2, seeds=1))
    assert list(frame["status"]) == ["diverged"]
    assert frame["peak_bytes"].iloc[0] > 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((["8-true"],), "precision '8-true' is not one of"),
        ((["32-true"], ["every:0"]), "every:0"),
        ((["32-true"], ["none"], 0), "seeds 0 is too few"),
        ((["32-true"], ["none"], []), r"seeds \[\] is too few"),
        ((["32-true"], ["none"], 1, "huge"), "scale 'huge' is unknown"),
    ],
)
def test_bad_arguments_get_one_sentence_before_anything_runs(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        matrix(*arguments)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'precision,"broken\n'])
def test_a_foreign_file_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a CSV of the training matrix"):
        matrix(["32-true"], ["none"], 1, SMALL, out=path)
    assert path.read_bytes() == content


def test_summary_has_one_row_a_setting_and_policy(real: Path) -> None:
    table = experiment.summary(read_matrix(real))
    assert len(table) == 4 and (table["runs"] == 2).all() and (table["diverged"] == 0).all()
    assert "peak (MB)" in experiment.styled(read_matrix(real)).to_html()
