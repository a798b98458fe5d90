"""Steps laid over each other: every line ends at its own peak, every time has its bar."""

import torch
from torch import nn

from labkit.memory import MemoryReport, measure
from labkit.memory.overlay import in_words, overlay


def report(width: int) -> MemoryReport:
    model, x = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 1)), torch.ones(8, 4)
    return measure(lambda: model(x).sum().backward(), model=model, inputs=x, allocator=False)


def test_each_line_reaches_its_peak_and_each_bar_its_time() -> None:
    reports = {"narrow": report(100), "wide": report(5000)}
    left, right = overlay(reports, {"narrow": 3.0, "wide": 12.0}, "finding").axes
    tops = {line.get_label(): line.get_ydata().max() for line in left.get_lines() if not line.get_label().startswith("_")}
    assert tops == {name: each.peak_bytes / 1e3 for name, each in reports.items()}
    assert left.get_ylabel() == "live memory (kB)"
    assert [bar.get_width() for bar in right.patches] == [12.0, 3.0]  # drawn from the bottom up
    assert [label.get_text() for label in right.get_yticklabels()] == ["wide", "narrow"]


def test_without_times_there_is_one_panel_and_words_tell_all() -> None:
    reports = {"narrow": report(100), "wide": report(5000)}
    assert len(overlay(reports).axes) == 1
    words = in_words(reports, {"narrow": 3.0, "wide": 12.0})
    assert f"wide peaks at {reports['wide'].peak_bytes / 1e6:.1f} MB in " in words and "12 ms" in words
    assert "ms" not in in_words(reports)
