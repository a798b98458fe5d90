"""The search for the largest batch, held against trying every batch, and the calibration against the CPU's allocator."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit.memory import compare, max_batch, plan, predict
from labkit.memory.calibration import calibrate, load
from labkit.memory.planning import BatchCurve, advice, budget_bytes, styled
from labkit.memory.prediction import fits
from labkit.training import preset, workload
from labkit.workload import Workload


def test_the_largest_batch_fits_and_the_next_does_not():
    tiny = workload("tiny")
    found = max_batch(tiny, "150 MB", precision="bf16-mixed")
    assert found.batch > 1
    assert fits(predict(tiny, found.batch, precision="bf16-mixed").trace, found.budget)
    assert not fits(predict(tiny, found.batch + 1, precision="bf16-mixed").trace, found.budget)
    assert found.traces <= 4
    assert found.peak_bytes <= found.budget


def test_the_line_through_two_traces_is_the_trace_at_any_batch():
    tiny = workload("tiny")
    traces = {n: predict(tiny, n, precision="bf16-true", checkpointing="full").trace for n in (2, 3, 7)}
    curve = BatchCurve(traces[2], traces[3])
    assert curve.exact
    assert curve.trace(7).events == traces[7].events


def test_a_model_whose_operations_change_with_the_batch_is_searched_without_the_line():
    class Switches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x):
            x = self.inner(x)
            return x.exp().sin() if x.shape[0] % 2 else x

    switching = Workload(model=Switches, batch=lambda n: torch.randn(n * 1023, 64), loss=lambda m, b: m(b).sum())
    assert not BatchCurve(predict(switching, 2).trace, predict(switching, 3).trace).exact
    found = max_batch(switching, "50 MB")
    assert fits(predict(switching, found.batch).trace, 50_000_000)


def test_the_articles_claim_holds_at_12_gb():
    article = workload("article")
    powers = {}
    for precision in ("32-true", "bf16-true"):
        batch = max_batch(article, "12 GB", precision=precision).batch
        powers[precision] = 2 ** (batch.bit_length() - 1)
    assert powers == {"32-true": 8, "bf16-true": 16}


def test_a_card_brings_its_memory_less_the_context():
    size, card = budget_bytes(gpu="RTX 3060", context="400 MB")
    assert card is not None and size == card.usable - 400_000_000
    assert budget_bytes("12GB", "RTX 3060")[0] == 12 * 10**9
    assert budget_bytes("12GiB")[0] == 12 * 2**30
    for budget, gpu, message in ((None, None, "needs a budget"), ("12", None, "no unit"), ("-1 GB", None, "negative")):
        with pytest.raises(ValueError, match=message):
            budget_bytes(budget, gpu)


def test_a_plan_says_what_to_change_first():
    table = plan(
        workload(preset("tiny", attention="mask")),
        "60 MB",
        precisions=("32-true", "bf16-true"),
        checkpointings=("none", "full"),
    )
    assert list(table.columns) == ["precision", "checkpointing", "attention", "max_batch", "peak_bytes", "limited_by"]
    assert table["max_batch"].idxmax() == 3
    lines = advice(table)
    assert lines[0].startswith("attention runs on the math kernel, because flash attention takes no mask")
    assert lines[-1].startswith("most of all: bf16-true with checkpointing full")


def test_compare_has_a_row_for_every_case_and_a_styled_form():
    frame = compare(workload("tiny"), (1, 2), precisions=("32-true",), checkpointings=("none", "full"))
    assert len(frame) == 4
    assert (
        frame["live_peak"]
        == frame[["parameters", "gradients", "optimizer", "activations", "temporaries", "inputs"]].sum(axis=1)
    ).all()
    html = styled(frame, budget="1 MB").to_html()
    assert "GiB" in html and "✗" in html


def test_calibration_on_a_cpu_meets_the_allocators_own_record(tmp_path):
    cases = {kind: replace(workload(preset("tiny", attention=kind)), name=kind) for kind in ("sdpa", "mask")}
    record = calibrate(cases, batches=(2,), device="cpu", precisions=("32-true",), checkpointings=("none", "full"))
    frame = record.frame()
    assert len(frame) == 4
    assert (frame["predicted"] == frame["tracked"]).all()
    assert frame["error_percent"].abs().max() < 1
    record.save(tmp_path / "measured" / "cpu.json")
    assert load(tmp_path / "measured" / "cpu.json") == record
    (tmp_path / "broken.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match="is not a record of labkit calibrate"):
        load(tmp_path / "broken.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a CUDA device")
def test_no_record_is_invented_where_there_is_no_card():
    with pytest.raises(ValueError, match="this machine has no CUDA device"):
        calibrate({"tiny": workload("tiny")}, batches=(1,), device="cuda")
