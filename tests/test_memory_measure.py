"""A measured step: the allocator's peak, categories that follow from the model's arithmetic, and honest words on the gap."""

import importlib
import pkgutil
import weakref
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import labkit.memory
from labkit import Workload
from labkit.memory import MemoryReport, measure, measure_workload
from labkit.memory.tracker import CATEGORIES

VOCABULARY, WIDTH = 128, 32


def transformer() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), Block(), nn.Linear(WIDTH, VOCABULARY, bias=False))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def workload(**options: Any) -> Workload:
    return Workload(
        model=transformer,
        batch=lambda n: (torch.randint(VOCABULARY, (n, 32)), torch.randint(VOCABULARY, (n, 32))),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, **options),
    )


def report_of(
    model: nn.Module, inputs: Tensor, targets: Tensor, criterion: Callable[[Any, Tensor], Tensor] = F.mse_loss, **options: Any
) -> MemoryReport:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()

    return measure(step, model=model, optimizer=optimizer, **options)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_the_peak_equals_the_allocators_record_to_the_byte(options: dict[str, bool]) -> None:
    report = measure_workload(workload(**options), 4)
    assert report.allocator is not None and report.allocator.peak_bytes == report.peak_bytes
    assert report.gap_bytes == 0 and report.gap.endswith("the same peak, to the byte.")


def test_categories_follow_from_the_model() -> None:
    report = measure_workload(workload(), 4)
    n_bytes = sum(p.nbytes for p in transformer().parameters())
    counters = 4 * len(list(transformer().parameters()))
    assert report.by_category["parameters"] == n_bytes
    assert report.by_category["optimizer"] == 2 * n_bytes + counters
    assert report.by_category["inputs"] == 2 * 4 * 32 * 8
    assert sum(report.by_category.values()) == report.peak_bytes
    assert report.by_category["gradients"] == 0  # the peak is at the logits, before any gradient of a parameter
    # Two gradients of the logits meet there: that of the loss's input and that of the log-softmax.
    assert report.by_category["temporaries"] == 2 * 4 * 32 * VOCABULARY * 4
    assert (report.phase_at_peak, report.op_at_peak) == ("backward", "aten._log_softmax_backward_data")


def test_the_timeline_is_a_running_sum() -> None:
    timeline = measure_workload(workload(), 2).timeline
    assert list(timeline["nbytes"].cumsum()) == list(timeline["live"])
    assert timeline[list(CATEGORIES)].sum(axis=1).equals(timeline["live"])
    assert timeline["event"].iloc[0] == "start" and timeline["phase"].iloc[0] == "before"
    assert list(timeline["phase"].drop_duplicates()) == ["before", "forward", "backward", "optimizer"] or list(
        timeline["phase"].drop_duplicates()
    ) == ["before", "forward", "backward", "optimizer", "forward"]
    assert timeline["live"].iloc[-1] == timeline["live"].iloc[0]  # a steady step ends as it began


def test_a_second_measurement_is_the_same() -> None:
    first, second = (measure_workload(workload(), 4) for _ in range(2))
    assert first.events == second.events and first.allocator == second.allocator


def test_checkpointing_and_precision_change_what_they_should() -> None:
    def peak(**options: Any) -> int:
        return measure_workload(workload(), 8, allocator=False, **options).by_category["activations"]

    none, full = peak(), peak(checkpointing="full")
    assert full < peak(checkpointing="selective") < none
    mixed = measure_workload(workload(), 4, precision="bf16-mixed", allocator=False)
    true = measure_workload(workload(), 4, precision="bf16-true", allocator=False)
    plain = measure_workload(workload(), 4, allocator=False)
    assert mixed.by_category["parameters"] == plain.by_category["parameters"] == 2 * true.by_category["parameters"]
    assert true.peak_bytes < mixed.peak_bytes < plain.peak_bytes


def test_micro_batches_keep_gradients_and_one_batch_of_activations() -> None:
    one, two = (measure_workload(workload(), 4, micro_batches=n, allocator=False) for n in (1, 2))
    assert two.by_category["activations"] - one.by_category["activations"] < 100  # the first loss, a few bytes
    assert two.by_category["gradients"] == two.by_category["parameters"] > one.by_category["gradients"]


@pytest.mark.parametrize("kind", ["lstm", "convolution"])
def test_hidden_workspace_is_told_in_words(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "lstm":
        model: nn.Module = nn.LSTM(32, 64)
        report = report_of(model, torch.ones(16, 8, 32), torch.ones(16, 8, 64), lambda out, t: F.mse_loss(out[0], t))
    else:
        model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16))
        report = report_of(model, torch.ones(8, 8, 16, 16), torch.ones(8, 16, 14, 14))
    assert report.gap_bytes is not None and report.gap_bytes > 0.05 * report.peak_bytes
    assert f"{report.gap_bytes:,} B higher" in report.gap and "inside aten." in report.gap


def test_gradients_left_by_an_earlier_step_do_not_disturb_the_record(capfd: pytest.CaptureFixture[str]) -> None:
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(VOCABULARY, (4, 32)), torch.randint(VOCABULARY, (4, 32))

    def step() -> None:
        print("from the step")
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    step()
    first = measure(step, model=model, optimizer=optimizer)
    again = measure(step, model=model, optimizer=optimizer, inputs=batch)
    assert first.gap_bytes == again.gap_bytes == 0
    # The batch is closed over by `step` and declared by nobody, and is found all the same.
    assert first.by_category == again.by_category and first.by_category["inputs"] == 2 * batch[0].nbytes
    out, err = capfd.readouterr()
    assert out.count("from the step") == 5 and err == ""


def test_what_the_step_prints_to_stderr_comes_through(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    model = nn.Linear(4, 4)
    measure(lambda: (os.write(2, b"a warning\n"), model(torch.ones(4)).sum().backward()), model=model)
    assert capfd.readouterr().err.count("a warning") == 2


def test_a_step_without_an_optimizer_and_a_model_without_activations() -> None:
    model = nn.Linear(4, 4, bias=False)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()

    report = measure(step, model=model)
    assert report.by_category["optimizer"] == 0 and report.by_category["parameters"] == 64


def test_evaluation_without_gradients_keeps_no_activations() -> None:
    model = transformer()
    tokens = torch.zeros(2, 8, dtype=torch.long)

    @torch.no_grad()
    def step() -> None:
        model(tokens)

    report = measure(step, model=model, inputs=tokens)
    assert report.by_category["activations"] == report.by_category["gradients"] == 0
    assert set(report.timeline["phase"]) == {"before", "forward"}


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    measure_workload(workload(), 2, allocator=False)
    assert torch.equal(torch.rand(3), expected)


def test_report_in_words_tables_and_figure() -> None:
    report = measure_workload(workload(), 4, checkpointing="full")
    table = report.table("kB")
    assert table.loc["peak", "at the peak (kB)"] == report.peak_bytes / 1000
    assert table["share (%)"].drop("peak").sum() == pytest.approx(100)
    assert "workload · batch 4 · 32-true · full" in repr(report) and report.op_at_peak in report.peak_in_words()
    figure = report.plot("A title")
    axes = figure.axes[0]
    assert "kB" in axes.get_ylabel() and axes.get_title(loc="left") == "A title"
    named = {text.get_text() for text in axes.get_legend().get_texts()} | {text.get_text() for text in axes.texts}
    assert named >= {"parameters", "optimizer", "gradients", "activations", "forward", "recompute", "backward"}
    assert report.op_at_peak in report.alt and "parameters" in report.alt
    assert report.summary()["peak_bytes"] == report.peak_bytes


def test_names_are_escaped_in_html() -> None:
    model = nn.Linear(4, 4)
    html = measure(lambda: model(torch.ones(4)).sum().backward(), model=model, name="<script>")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize("batch_size", [0, -3, 1.5, "8", True, None])
def test_a_bad_batch_size_is_named(batch_size: Any) -> None:
    with pytest.raises(ValueError, match=f"batch_size .* at least 1, not {batch_size!r}"):
        measure_workload(workload(), batch_size)


def test_other_bad_arguments_get_one_sentence() -> None:
    with pytest.raises(TypeError, match="step must be a function of no arguments"):
        measure(3, model=transformer())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(ReLU\) has no parameters"):
        measure(lambda: None, model=nn.ReLU())
    with pytest.raises(ValueError, match="bf16-mixed"):
        measure_workload(workload(), 2, precision="bf17")
    with pytest.raises(ValueError, match="sqrt"):
        measure_workload(workload(), 2, checkpointing="some")


def test_public_names_are_what_they_say_even_when_every_module_is_loaded() -> None:
    for module in pkgutil.iter_modules(labkit.memory.__path__):
        importlib.import_module(f"labkit.memory.{module.name}")
    for name in labkit.memory.__all__:
        assert callable(getattr(labkit.memory, name)), f"labkit.memory.{name} is hidden by a module of that name"


def test_peaks_are_the_highest_running_sum_of_the_events() -> None:
    report = measure_workload(workload(), 2)
    changes = [event.nbytes if event.kind == "alloc" else -event.nbytes for event in report.events]
    assert report.peak_bytes == max(accumulate(changes))


def test_what_the_warm_up_leaves_in_cycles_is_gone_before_the_measured_step() -> None:
    model = nn.Linear(4, 4)
    left: list[weakref.ref] = []
    alive: list[bool] = []

    def step() -> None:
        alive.extend(reference() is not None for reference in left)
        cycle: list[Any] = [torch.ones(1000)]
        cycle.append(cycle)
        left.append(weakref.ref(cycle[0]))
        model(torch.ones(4)).sum().backward()

    measure(step, model=model)
    assert alive == [False]
