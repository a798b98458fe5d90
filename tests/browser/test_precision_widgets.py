"""LossScaleExplorer and UpdateExplorer: what they show is what Python computes, and keys alone work them."""

from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from torch import Tensor, nn

from labkit.widgets import LossScaleExplorer, UpdateExplorer
from labkit.widgets.update_explorer import FORMATS

pytestmark = pytest.mark.browser


def gradients() -> dict[str, Tensor]:
    """Two tensors whose fates are known: in fp16 `small` loses two of five, `large` overflows from 2^10 on."""
    small = torch.tensor([2.0**-30, -(2.0**-26), 2.0**-20, 2.0**-14, 0.0, 2.0**-8])
    return {"small": small, "large": torch.tensor([1.0, -64.0])}


def trait(page: Page, name: str) -> Any:
    return page.evaluate("name => window.models[0].state[name]", name)


def row(page: Page, fmt: str) -> list[str]:
    return page.locator("tbody tr", has=page.locator(f'th:text-is("{fmt}")')).locator("td").all_text_contents()


# LossScaleExplorer


def test_the_shares_move_with_the_scale(show: Any) -> None:
    page, troubles = show(LossScaleExplorer(gradients()))
    total = 7  # nonzero ones
    assert row(page, "fp16") == [f"{200 / total:.2f} %", f"{100 / total:.2f} %", f"{400 / total:.2f} %", "0 %"]
    assert row(page, "bf16") == ["0 %", "0 %", "100 %", "0 %"]
    page.get_by_role("button", name="Double the loss scale").click()
    page.get_by_role("button", name="Double the loss scale").click()
    assert trait(page, "shift") == 2
    assert row(page, "fp16")[0] == f"{100 / total:.2f} %"  # 2^-26 is rescued as 2^-24
    expect(page.locator(".ls-verdict")).to_contain_text("would take this step")
    assert troubles == []


def test_a_scale_too_large_says_what_a_scaler_would_do(show: Any) -> None:
    page, troubles = show(LossScaleExplorer(gradients()))
    page.get_by_role("button", name="GradScaler's first scale").click()
    verdict = page.locator(".ls-verdict")
    expect(verdict).to_contain_text("would skip this step and halve the scale: 2 of the gradients overflow in fp16")
    page.get_by_role("button", name="The largest scale without overflow").click()
    assert trait(page, "shift") == 9  # 64 x 2^9 = 32768; twice that is infinite
    expect(verdict).to_contain_text("The largest scale without overflow is 2⁹")
    page.get_by_label("Gradients of").select_option("small")
    page.get_by_role("button", name="The largest scale without overflow").click()
    assert trait(page, "shift") == 23  # 2^-8 x 2^23 = 2^15
    assert troubles == []


def test_the_slider_works_by_keys_and_tells_python_each_time(show: Any) -> None:
    page, troubles = show(LossScaleExplorer(gradients(), shift=3))
    slider = page.get_by_role("slider")
    slider.focus()
    for key, want in (("ArrowRight", 4), ("ArrowRight", 5), ("ArrowLeft", 4), ("End", 40), ("Home", 0)):
        page.keyboard.press(key)
        assert trait(page, "shift") == want
    assert page.evaluate("window.models[0].saves.length") == 5
    expect(slider).to_have_attribute("aria-valuetext", "2⁰ = 1")
    assert troubles == []


def test_python_moves_the_view(show: Any) -> None:
    page, troubles = show(LossScaleExplorer(gradients()))
    page.evaluate("window.models[0].set('shift', 12)")
    expect(page.locator(".ls-scale")).to_have_text("loss × 2¹² = 4,096")
    assert troubles == []


def test_gradients_are_read_from_a_model_and_bad_input_is_one_sentence() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no gradients yet: call backward"):
        LossScaleExplorer(model)
    model(torch.ones(1, 3)).sum().backward()
    explorer = LossScaleExplorer(model)
    assert set(explorer.histograms) == {"all parameters", "weight", "bias"}
    assert sum(explorer.histograms["all parameters"]["counts"]) == 8
    with pytest.raises(ValueError, match="shift: 41 is not a whole number from 0 to 40"):
        explorer.shift = 41
    with pytest.raises(ValueError, match="part: 'head' is not one of all parameters, weight, bias"):
        explorer.part = "head"
    assert (explorer.shift, explorer.part) == (0, "all parameters")
    with pytest.raises(TypeError, match="a module or a dict of names and tensors is needed, not list"):
        LossScaleExplorer([torch.ones(2)])


# UpdateExplorer

CASES = [("1", "0.001", 120, 0), ("1", "2^-8", 40, 3), ("-0.5", "1e-4", 77, 12345), ("65504", "40", 12, 1), ("0.3", "0", 5, 0)]


@pytest.mark.parametrize(("weight", "update", "steps", "seed"), CASES)
def test_the_table_holds_what_python_computes(show: Any, weight: str, update: str, steps: int, seed: int) -> None:
    explorer = UpdateExplorer(weight, update, steps=steps, seed=seed)
    page, troubles = show(explorer)
    for fmt in FORMATS:
        shown = [float(cell.split(" (")[0]) for cell in row(page, fmt)]
        assert shown == pytest.approx(list(explorer.results[fmt].values()), rel=1e-8)
    assert troubles == []


def test_the_update_vanishes_to_nearest_and_arrives_otherwise() -> None:
    results = UpdateExplorer("1", "0.001", steps=500).results
    assert results["bf16"]["nearest"] == 1
    assert results["bf16"]["stochastic"] == pytest.approx(1.5, rel=0.1)
    assert results["bf16"]["kahan"] == pytest.approx(1.5, abs=2**-7)
    assert results["fp32"]["nearest"] == pytest.approx(1.5, abs=1e-4)


def test_typing_choosing_and_sliding_reach_python(show: Any) -> None:
    page, troubles = show(UpdateExplorer())
    update = page.get_by_label("Update, added each step")
    update.fill("2^-7")
    page.keyboard.press("Enter")
    assert trait(page, "update") == "2^-7"
    expect(page.locator(".ue-why")).to_contain_text("the update is 1 of that step, so the weight moves")
    page.get_by_label("Format drawn").select_option("fp16")
    assert trait(page, "format") == "fp16"
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert trait(page, "steps") == 2
    page.get_by_role("button", name="New draws").press("Enter")
    assert trait(page, "seed") == 1
    assert troubles == []


@pytest.mark.parametrize("text", ["fish", "inf", "", "<img src=x onerror=alert(1)>"])
def test_a_text_that_is_no_number_is_refused_in_one_sentence(show: Any, text: str) -> None:
    page, troubles = show(UpdateExplorer())
    update = page.get_by_label("Update, added each step")
    update.fill(text)
    page.keyboard.press("Enter")
    expect(page.locator('[aria-invalid="true"]')).to_have_count(1)
    expect(page.get_by_role("alert").filter(has_text=text or "type")).not_to_be_empty()
    assert trait(page, "update") == "0.001"
    assert troubles == []


def test_bad_input_from_python_is_one_sentence_and_changes_nothing() -> None:
    explorer = UpdateExplorer("1", "0.001")
    for name, value, message in (
        ("update", "fish", "update: 'fish'"),
        ("weight", "inf", "weight: 'inf' is not a finite number"),
        ("steps", 0, "steps: 0 is not a whole number from 1 to 500"),
        ("format", "fp8", "format: 'fp8' is not one of bf16, fp16, fp32"),
    ):
        with pytest.raises(ValueError, match=message):
            setattr(explorer, name, value)
    assert repr(explorer) == "UpdateExplorer(weight='1', update='0.001', steps=100, format='bf16')"


# both


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1000, 390])
def test_both_are_accessible_and_fit_a_phone(show: Any, dark: bool, width: int) -> None:
    page, troubles = show(LossScaleExplorer(gradients(), shift=12), UpdateExplorer(), dark=dark, width=width)
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heights = page.locator("button, select, input[type=text]").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().height)"
    )
    assert min(heights) >= 24
    assert troubles == []
