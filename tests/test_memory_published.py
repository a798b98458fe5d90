"""Predictions held against what others published, and the page that tells how far they are."""

import pandas as pd
import pytest

from labkit.memory import published
from labkit.resources import data_file

#: The rows that are quick enough for every run; `python -m labkit validate` does them all.
EXACT = ("cce-fwd", "cce-bwd", "cce-both")


def test_cross_entropy_peaks_are_exact_to_the_mebibyte():
    table = published.validate(list(EXACT))
    assert table["predicted"].tolist() == table["published"].tolist() == [24000, 16000, 28000]


@pytest.mark.parametrize("name", ["korth-none", "korth-flash"])
def test_a_layers_saved_bytes_are_korthikantis_within_a_fifth_of_a_percent(name):
    assert abs(published.validate([name])["error_percent"].item()) < 0.2


@pytest.mark.parametrize("name", ["vit-adam"])
def test_published_totals_are_met(name):
    assert abs(published.validate([name])["error_percent"].item()) < 5


def test_the_stored_table_has_every_row_and_keeps_to_the_margin():
    stored = pd.read_csv(data_file("validation.csv"))
    assert stored["id"].tolist() == [row.id for row in published.published()]
    errors = stored.loc[stored["id"].str.startswith(published.TOTALS), "error_percent"].abs()
    assert errors.mean() <= 5
    assert errors.max() <= 12
    assert published.margin() == pytest.approx(errors.max() / 100)


def test_the_page_is_written_from_the_stored_table():
    stored = pd.read_csv(data_file("validation.csv"))
    page = (data_file("validation.csv").parent.parent / "docs" / "validation.md").read_text(encoding="utf-8")
    for row in stored.itertuples():
        assert f"| {row.id} | {row.what} | {row.unit} | {row.published:,.2f} | {row.predicted:,.2f} |" in page
    assert published.summary_sentence(stored) in page


def test_every_published_row_has_a_scenario_and_a_source():
    rows = published.published()
    assert {row.id for row in rows} == set(published.SCENARIOS)
    assert all(row.source for row in rows)


def test_an_unknown_figure_is_refused():
    with pytest.raises(ValueError, match="published figure 'x' is unknown; there are: cce-fwd"):
        published.validate(["x"])
