"""The report on the matrix: everything in one file, nothing unescaped, one sentence for a CSV that is none."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import matrix_plots
from labkit.__main__ import main
from labkit.experiment import COLUMNS, CURVE_COLUMNS, curves_path
from labkit.report import read_results, write_report

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-true")
POLICIES = ("none", "full")
CONCLUSION = 'Choose <script>alert(1)</script> & "full".\n\nSecond   paragraph\nof it.'


def row(precision: str, checkpointing: str, seed: int) -> dict[str, object]:
    """One run; a shorter dtype and recomputation save memory, 16-true diverges."""
    width = 0.5 if precision.endswith("-true") and precision != "32-true" else 1.0
    kept, slow = (20_000_000, 1.0) if checkpointing == "none" else (6_000_000, 1.3)
    lost = precision == "16-true"
    return {
        "scale": "laptop",
        "device": "cpu",
        "data": "english",
        "precision": precision,
        "checkpointing": checkpointing,
        "seed": seed,
        "status": "diverged" if lost else "ok",
        "train_loss": np.nan if lost else 2.0,
        "val_loss": np.nan if lost else 2.1 + 0.01 * seed + (0.2 if precision == "bf16-true" else 0.0),
        "tokens_per_s": 10_000 / slow,
        "step_ms": 100.0 * slow,
        "peak_bytes": int(width * (kept + 8_000_000)),
        "parameters": int(width * 1_000_000),
        "gradients": int(width * 1_000_000),
        "optimizer": int(width * 2_000_000),
        "activations": int(width * kept),
        "temporaries": int(width * 3_900_000),
        "inputs": int(width * 100_000),
        "recompute_overhead": slow - 1,
    }


def matrix(seeds: int = 3, **changes: object) -> pd.DataFrame:
    rows = [row(p, c, seed) | changes for seed in range(seeds) for p in PRECISIONS for c in POLICIES]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    matrix().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the whole small matrix, with a conclusion that tries to be markup."""
    path = tmp_path_factory.mktemp("report") / "runs.csv"
    matrix().to_csv(path, index=False)
    return write_report(path, conclusion=CONCLUSION)


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


# ---- the page -----------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(report: Path) -> None:
    assert report.name == "runs.html"
    page = page_of(report)
    assert not page.all("link") and not page.all("script")
    assert all(str(image["src"]).startswith("data:image/png;base64,") for image in page.all("img"))
    text = report.read_text(encoding="utf-8")
    assert "url(" not in text and "http" not in text


def test_the_same_results_give_the_same_bytes(report: Path, tmp_path: Path) -> None:
    again = write_report(report.with_suffix(".csv"), tmp_path / "again.html", conclusion=CONCLUSION)
    assert again.read_bytes() == report.read_bytes()


def test_every_figure_has_words_and_every_table_its_headers(report: Path) -> None:
    page = page_of(report)
    images = page.all("img")
    assert len(images) == 3 and all(len(str(image["alt"])) > 40 for image in images)
    scopes = [header.get("scope") for header in page.all("th")]
    assert scopes.count("row") == len(PRECISIONS) * len(POLICIES) and None not in scopes
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.all("html")[0]["lang"] == "en" and page.all("caption")
    assert all(region.get("tabindex") == "0" and region.get("aria-labelledby") for region in page.all("div"))


def test_means_and_spreads_are_those_of_the_runs(report: Path) -> None:
    text = page_of(report).text
    assert "2.110 ± 0.010" in text  # seeds 2.10, 2.11, 2.12
    assert text.count("✗ 0 of 3") == 2 and text.count("✓ 3 of 3") == 6
    assert re.search(r"Lowest loss: 32-true · none, 2\.110 nats per token at 28\.0\sMB", text)
    assert re.search(r"seeds cannot tell from it: 32-true · full, 14\.0\sMB", text)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    matrix(seeds=1).to_csv(path, index=False)
    table = page_of(write_report(path)).text.split("How to read this")[0]
    assert "Not written yet" in table
    assert "1 seed." in table and not re.search(r"\d ± \d", table)


def test_curves_are_drawn_where_they_are_kept(results: Path) -> None:
    keys = matrix()[["scale", "device", "data", "precision", "checkpointing", "seed"]]
    frames = [keys.assign(step=step, loss=5.0 / (step + 1)) for step in range(5)]
    pd.concat(frames)[CURVE_COLUMNS].to_csv(curves_path(results), index=False)
    assert len(page_of(write_report(results)).all("img")) == 4


def test_each_scale_and_device_gets_its_own_part(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    pd.concat([matrix(1), matrix(1, device="cuda")]).to_csv(path, index=False)
    page = page_of(write_report(path))
    assert len(page.all("table")) == 2
    assert {link["href"] for link in page.all("a")} == {"#part-1", "#part-2"}


def test_a_matrix_where_everything_diverged_is_a_result(tmp_path: Path) -> None:
    path = tmp_path / "lost.csv"
    matrix(status="diverged", val_loss=np.nan).to_csv(path, index=False)
    assert "No setting finished all its runs." in page_of(write_report(path)).text


# ---- what others wrote ----------------------------------------------------------------------------------------------------


def test_the_conclusion_is_text_and_never_markup(report: Path) -> None:
    page = page_of(report)
    assert not page.all("script")
    assert 'Choose <script>alert(1)</script> & "full".' in page.text and "Second paragraph of it." in page.text


def test_values_of_the_csv_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    matrix(data="<img src=x onerror=alert(1)>").to_csv(path, index=False)
    out = write_report(path)
    assert all("onerror" not in image for image in page_of(out).all("img"))
    assert "text <img src=x" in page_of(out).text


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"status": "fine"}, "line 2: status 'fine' is not one of: ok, diverged"),
        ({"precision": "8-true"}, "line 2: precision '8-true'"),
        ({"checkpointing": "every:0"}, "line 2: checkpointing 'every:0'"),
        ({"peak_bytes": "much"}, "line 2: column 'peak_bytes' holds 'much', not a number from 0 up"),
        ({"step_ms": -1.0}, "line 2: column 'step_ms' holds -1.0, not a number from 0 up"),
        ({"activations": None}, "line 2: column 'activations' holds nothing"),
        ({"val_loss": "low"}, "line 2: column 'val_loss' holds 'low'"),
    ],
)
def test_a_wrong_value_gets_one_sentence_with_its_line(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    path = tmp_path / "wrong.csv"
    matrix(seeds=1, **changes).to_csv(path, index=False)
    with pytest.raises(ValueError) as raised:
        read_results(path)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "is not a CSV of the training matrix"),
        ("a,b\n1,2\n", "column 'scale' is missing"),
        (",".join(COLUMNS) + "\n", "holds no run yet"),
        ('scale,"broken\n1,2,3\n1\n', "is not a CSV of the training matrix"),
    ],
)
def test_a_malformed_csv_exits_2_with_one_sentence(
    tmp_path: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "malformed.csv"
    path.write_text(text, encoding="utf-8")
    assert main(["report", str(path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.strip().splitlines()) == 1
    assert not path.with_suffix(".html").exists()


def test_a_folder_that_is_not_there_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(results), "--out", str(results.parent / "nowhere" / "page.html")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_command_writes_where_it_is_told(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(results), "--out", str(out), "--conclusion", "Mine."]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert "Mine." in page_of(out).text


# ---- the figures ----------------------------------------------------------------------------------------------------------


def test_the_front_holds_what_nothing_beats() -> None:
    table = matrix_plots.per_setting(matrix())
    front = matrix_plots.undominated(table, "peak_bytes", "step_ms")
    rest = table[(table["diverged"] == 0) & ~table.index.isin(front.index)]
    for point in front.itertuples():
        for other in table[table["diverged"] == 0].itertuples():
            assert not (other.peak_bytes < point.peak_bytes and other.step_ms < point.step_ms)
    for point in rest.itertuples():
        assert ((front["peak_bytes"] <= point.peak_bytes) & (front["step_ms"] <= point.step_ms)).any()
    assert list(front["precision"]) == ["bf16-true", "bf16-true"]


def test_bars_add_up_to_the_peak() -> None:
    frame = matrix(seeds=1)
    axes = matrix_plots.categories(frame).figure.axes[0]
    ends = {round(patch.get_y(), 2): 0.0 for patch in axes.patches}
    for patch in axes.patches:
        ends[round(patch.get_y(), 2)] = max(ends[round(patch.get_y(), 2)], patch.get_x() + patch.get_width())
    assert sorted(ends.values()) == pytest.approx(sorted(frame["peak_bytes"] / 1e6))


def test_unknown_curves_are_refused() -> None:
    keys = matrix()[["scale", "device", "data", "precision", "checkpointing", "seed"]].assign(step=0, loss=1.0)
    with pytest.raises(ValueError, match="checkpointing 'sqrt' is not among the curves; there are: none, full"):
        matrix_plots.curves(keys, checkpointing="sqrt")
    assert "entropy" in matrix_plots.curves(keys, floor=1.5).figure.axes[0].texts[0].get_text()
