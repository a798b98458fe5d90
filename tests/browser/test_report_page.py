"""The report on the matrix in a real browser: accessible in both themes, and narrow."""

from pathlib import Path

import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from labkit.experiment import CATEGORIES, COLUMNS
from labkit.report import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "runs.csv"
    rows = [
        {
            "precision": precision,
            "checkpointing": policy,
            "seed": seed,
            "status": "ok" if precision != "16-true" else "diverged",
        }
        for precision in ("32-true", "bf16-mixed", "16-true")
        for policy in ("none", "full")
        for seed in (0, 1)
    ]
    frame = pd.DataFrame(rows).assign(scale="laptop", device="cpu", data="english", tokens_per_s=9e3, step_ms=100.0)
    frame = frame.assign(train_loss=2.0, val_loss=2.1 + 0.01 * frame["seed"], recompute_overhead=0.3, peak_bytes=6_000_000)
    frame.assign(**dict.fromkeys(CATEGORIES, 1_000_000))[COLUMNS].to_csv(path, index=False)
    return write_report(path, conclusion="I choose bf16-mixed with full.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible_and_fits_a_phone(browser: Browser, page_file: Path, theme: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=theme)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (theme == "dark")
    results = Axe().run(page)
    context.close()
    assert results.violations_count == 0, results.generate_report()
