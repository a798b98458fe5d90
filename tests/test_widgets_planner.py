"""The planner from Python: what it predicts, sends and refuses; and its drawing's arithmetic in node."""

import json
import shutil
import subprocess
from dataclasses import asdict

import pytest

from labkit.memory import predict
from labkit.training import ModelConfig, preset, workload
from labkit.widgets import Planner

TINY = preset("tiny", layers=1)


def planner(**options):
    sizes = {"tiny": asdict(TINY), "wide": asdict(preset("tiny", layers=1, hidden=128))}
    return Planner(lambda chosen: workload(ModelConfig(**chosen)), sizes, **options)


def test_the_bar_is_the_exact_prediction():
    widget = planner(batch=4, precision="bf16-mixed", gpu="T4")
    exact = predict(workload(TINY), 4, precision="bf16-mixed", gpu="T4").nvidia_smi
    assert sum(size for _, _, _, size in widget.view["parts"]) == exact
    assert widget.prediction.nvidia_smi == exact
    assert widget.view["card"] == "T4"


def test_the_straight_line_goes_through_two_exact_predictions():
    widget = planner(batch=12)
    line = {n: sum(fixed + each * n for _, fixed, each, _ in widget.view["parts"]) for n in (2, 12)}
    for batch, total in line.items():
        assert total == pytest.approx(predict(workload(TINY), batch, gpu="RTX 3060").nvidia_smi)


def test_a_change_of_any_control_is_predicted():
    widget = planner(batch=2)
    before = widget.view
    widget.optimizer = "SGD"
    assert sum(part[3] for part in widget.view["parts"]) < sum(part[3] for part in before["parts"])
    widget.preset = "wide"
    assert widget.sizes["hidden"] == 128


def test_sizes_that_make_no_model_become_a_message():
    widget = planner(batch=2)
    widget.sizes = {**widget.sizes, "heads": 7}
    assert "hidden must be a multiple of heads" in widget.view["error"]
    widget.sizes = asdict(TINY)
    assert "error" not in widget.view


def test_bad_input_is_refused_and_changes_nothing():
    widget = planner(batch=2)
    for name, value in (
        ("batch", 0),
        ("precision", "8-true"),
        ("checkpointing", "half"),
        ("optimizer", "magic"),
        ("gpu", "abacus"),
    ):
        with pytest.raises(Exception, match="is not"):
            setattr(widget, name, value)
    assert widget.batch == 2 and widget.gpu == "RTX 3060"
    with pytest.raises(ValueError, match="preset 'none' is not one of tiny, wide"):
        planner(preset="none")
    assert repr(widget).startswith("Planner(preset='tiny', batch=2")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_while_dragging_the_line_is_drawn_and_said_to_be_one(tmp_path):
    view = {"parts": [["parameters", 100, 0, 100], ["activations", 0, 10, 85]], "batch": 8, "limit": 250}
    (tmp_path / "planner.mjs").write_text(Planner._esm)
    (tmp_path / "run.mjs").write_text(
        "import { partsAt, largestBatch } from './planner.mjs';\n"
        f"const view = {json.dumps(view)};\n"
        "console.log(JSON.stringify([partsAt(view, 8), partsAt(view, 9), largestBatch(view)]));\n"
    )
    out = subprocess.run(["node", str(tmp_path / "run.mjs")], capture_output=True, text=True, check=True).stdout
    now, dragged, largest = json.loads(out)
    assert (now["exact"], now["total"]) == (True, 185)
    assert (dragged["exact"], dragged["total"]) == (False, 190)
    assert largest == 15
