"""The figures that compare measured steps show the numbers they were given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from labkit.memory import MemoryReport, charts
from labkit.memory.tracker import Event


def report(**categories: int) -> MemoryReport:
    events = [
        Event("alloc", i, nbytes, name, "forward", "aten.empty", "", "cpu")  # type: ignore[arg-type]
        for i, (name, nbytes) in enumerate(categories.items())
    ]
    return MemoryReport(events, "cpu")


def test_stacked_bars_add_up_to_the_peaks() -> None:
    reports = {1024: report(parameters=4_000_000, activations=2_000_000), 2048: report(parameters=5_000_000)}
    axes = charts.stacked(reports, "A title", x="vocabulary").axes[0]
    tops = {round(bar.get_x() + bar.get_width() / 2): bar.get_y() + bar.get_height() for bar in axes.patches}
    assert tops == {0: pytest.approx(6.0), 1: pytest.approx(5.0)}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1,024", "2,048"]
    assert axes.get_ylabel() == "memory at the peak (MB)"
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"parameters", "activations"}
    plt.close("all")


def test_kept_bars_are_named_and_one_stands_out() -> None:
    axes = charts.kept_bars({"blocks.0": 3000, "loss": 9000}, "A title", highlight="loss").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [3.0, 9.0]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor() and axes.patches[1].get_hatch()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["blocks.0", "loss"]
    assert "kB" in axes.get_xlabel()
    plt.close("all")


def test_the_line_goes_through_the_first_two_points_only() -> None:
    axes = charts.line({"bent": ([1, 2, 4], [3_000_000, 5_000_000, 20_000_000])}, "A title", x="batch").axes[0]
    drawn, points = axes.lines
    assert list(points.get_ydata()) == [3.0, 5.0, 20.0]
    assert list(drawn.get_xdata()) == [0, 4] and list(drawn.get_ydata()) == [1.0, 9.0]
    plt.close("all")
