"""The widgets on a bare page with a fake model: every change arrives, is on screen in a frame, and all are accessible."""

import statistics
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from labkit.numbers import FORMATS, FloatFormat
from labkit.widgets import BitViewer, NumberLine, RangeExplorer

pytestmark = pytest.mark.browser


def trait(page: Page, name: str, index: int = 0) -> Any:
    return page.evaluate("([index, name]) => window.models[index].state[name]", [index, name])


def bit(page: Page, fmt: str, position: int) -> Any:
    return page.locator(f'[data-format="{fmt}"] [data-position="{position}"]')


# Handlers run before the next animation frame: what the page shows in that frame is one frame away from the hand.
_WATCH_FRAMES = """() => {
    window.frames_ = [];
    const shown = () => document.querySelector('[data-format="fp16"] .lb-hex input').value;
    for (const name of ["keydown", "pointerdown", "pointermove"]) {
        document.addEventListener(name, () => {
            const start = performance.now();
            const before = window.models[0].state.source;
            requestAnimationFrame(() => {
                const { source, codes } = window.models[0].state;
                if (source !== before) window.frames_.push({ ms: performance.now() - start, drawn: shown() === codes.fp16 });
            });
        }, { capture: true });
    }
}"""


def check_frames(page: Page, hand: str) -> None:
    """Every change was drawn in the first frame after it; print how long that took in the middle."""
    frames = page.evaluate("window.frames_")
    assert len(frames) >= 50
    assert all(frame["drawn"] for frame in frames)
    print(f"{hand}: {len(frames)} frames, median {statistics.median(frame['ms'] for frame in frames):.1f} ms to the frame")


def test_a_hundred_changes_by_keyboard_all_arrive(show: Any) -> None:
    page, troubles = show(BitViewer(1, formats=("fp32", "fp16", "bf16", "fp8_e4m3fn")))
    page.evaluate(_WATCH_FRAMES)
    fp16 = FORMATS["fp16"]
    code = 0x3C00
    bit(page, "fp16", 15).focus()
    for step in range(50):
        page.keyboard.press("ArrowUp" if step % 5 else "ArrowDown")
        code = fp16.next_up(code) if step % 5 else fp16.next_down(code)
        assert trait(page, "codes")["fp16"] == f"0x{code:04X}"
    position = 15
    for step in range(50):
        page.keyboard.press("ArrowRight" if step % 15 else "Home")
        position = position - 1 if step % 15 else 15
        page.keyboard.press("Space" if step % 2 else "Enter")
        code ^= 1 << position
        expect(bit(page, "fp16", position)).to_have_attribute("aria-pressed", "true" if code >> position & 1 else "false")
        assert trait(page, "source") == f"fp16:0x{code:04X}"
    assert page.evaluate("window.models[0].saves.length") == 100
    check_frames(page, "keyboard")
    assert troubles == []


def test_a_hundred_changes_by_drag_all_arrive(show: Any) -> None:
    page, troubles = show(BitViewer(0, formats=("fp16", "fp32")))
    page.evaluate(_WATCH_FRAMES)
    changes = 0
    code = 0
    for first, last in [(9, 0), (0, 9), (9, 4), (4, 9), (14, 10), (8, 1)] * 3:
        boxes = [bit(page, "fp16", position).bounding_box() for position in (first, last)]
        (x0, y0), (x1, y1) = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        on = not code >> first & 1
        page.mouse.move(x0, y0)
        page.mouse.down()
        page.mouse.move(x1, y1, steps=12)
        page.mouse.up()
        for position in range(min(first, last), max(first, last) + 1):
            if bool(code >> position & 1) != on:
                changes += 1
                code ^= 1 << position
        assert trait(page, "codes")["fp16"] == f"0x{code:04X}"
    assert changes >= 100
    assert page.evaluate("window.models[0].saves.length") == changes
    check_frames(page, "drag")
    assert troubles == []


def test_a_fast_drag_skips_no_bit(show: Any) -> None:
    page, _ = show(BitViewer(0, formats=("fp16",)))
    start, end = bit(page, "fp16", 9).bounding_box(), bit(page, "fp16", 0).bounding_box()
    page.mouse.move(start["x"] + 8, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(end["x"] + 8, end["y"] + 8, steps=1)
    page.mouse.up()
    assert trait(page, "codes")["fp16"] == "0x03FF"


def test_touch_and_pen_flip_bits(show: Any) -> None:
    page, _ = show(BitViewer(1, formats=("fp16",)), width=390, touch=True)
    bit(page, "fp16", 0).tap()
    assert trait(page, "codes")["fp16"] == "0x3C01"
    bit(page, "fp16", 1).dispatch_event("pointerdown", {"pointerType": "pen", "button": 0, "pointerId": 1, "bubbles": True})
    assert trait(page, "codes")["fp16"] == "0x3C03"


def test_a_bit_row_is_one_tab_stop(show: Any) -> None:
    page, _ = show(BitViewer(1, formats=("fp16",)))
    assert page.locator('[data-format="fp16"] .lb-bit[tabindex="0"]').count() == 1
    bit(page, "fp16", 15).focus()
    page.keyboard.press("End")
    expect(bit(page, "fp16", 0)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator('[data-format="fp16"] .lb-tools button').first).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(bit(page, "fp16", 0)).to_be_focused()
    expect(bit(page, "fp16", 0)).to_have_attribute("aria-label", "fraction bit 0, weight 2^-10")
    expect(bit(page, "fp16", 12)).to_have_attribute("aria-label", "exponent bit 2, weight 2^2")


def test_a_change_is_spoken_and_refused_text_changes_nothing(show: Any) -> None:
    page, troubles = show(BitViewer("0.1", formats=("fp16",)))
    bit(page, "fp16", 0).click()
    expect(page.locator('[aria-live="polite"]')).to_contain_text("fp16 0x2E67")
    before = trait(page, "source")
    for label, text, sentence in [
        ("Value", "one tenth", '"one tenth" is not a number'),
        ("fp16 hex", "0x12345", '"0x12345" does not fit into the 16 bits of fp16.'),
        ("fp16 hex", "3G00", '"3G00" is not hexadecimal'),
    ]:
        field = page.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_role("alert").filter(has_text=sentence)).to_be_visible()
        assert trait(page, "source") == before
        field.press("Escape")
        expect(field).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Value", exact=True).fill("1e999999999")
    page.get_by_label("Value", exact=True).press("Enter")
    assert trait(page, "codes")["fp16"] == "0x7C00"
    assert troubles == []


def test_value_hex_binary_negate_step_special_and_custom(show: Any) -> None:
    page, troubles = show(BitViewer("0.1", formats=("fp16", "bf16")))
    row = page.locator('[data-format="fp16"]')
    row.get_by_label("fp16 hex").fill("3c00")
    row.get_by_label("fp16 hex").press("Enter")
    expect(page.get_by_label("Value", exact=True)).to_have_value("1")
    row.get_by_role("button", name="fp16: step up by one ulp").click()
    assert trait(page, "codes") == {"fp16": "0x3C01", "bf16": "0x3F80"}
    row.get_by_role("button", name="fp16: negate").click()
    assert trait(page, "codes")["fp16"] == "0xBC01"
    row.get_by_label("fp16: special values").select_option(label="signalling NaN")
    assert trait(page, "codes") == {"fp16": "0x7C01", "bf16": "0x7FC0"}
    row.get_by_role("button", name="Anatomy of fp16").click()
    expect(row.locator(".lb-facts")).to_contain_text("signalling NaN, payload 0x1")
    row.get_by_label("fp16 binary").fill("0 01111 0000000011")
    row.get_by_label("fp16 binary").press("Enter")
    assert trait(page, "source") == "fp16:0x3C03"
    expect(row.locator(".lb-facts")).to_contain_text("1 + 1/512 + 1/1024")
    page.get_by_text("Custom format").click()
    page.get_by_label("Special values", exact=True).select_option("finite")
    page.get_by_role("button", name="Show this format").click()
    assert trait(page, "formats")[-1] == {
        "name": "custom",
        "exponent_bits": 4,
        "fraction_bits": 3,
        "bias": 7,
        "specials": "finite",
        "signed": True,
    }
    page.get_by_label("Exponent bits").fill("99")
    page.get_by_role("button", name="Show this format").click()
    expect(page.get_by_role("alert").filter(has_text="exponent_bits is a whole number from 0 to 15, not 99.")).to_be_visible()
    assert troubles == []


def test_an_update_below_half_an_ulp_vanishes(show: Any) -> None:
    page, _ = show(BitViewer(256, formats=("bf16", "fp32"), update=1))
    row = page.locator('[data-format="bf16"]')
    expect(row.locator(".lb-update")).to_contain_text("it vanishes")
    row.get_by_role("button", name="bf16: add the update").click()
    assert trait(page, "codes")["bf16"] == "0x4380"
    page.locator('[data-format="fp32"]').get_by_role("button", name="fp32: add the update").click()
    assert trait(page, "codes") == {"bf16": "0x4380", "fp32": "0x43808000"}


def test_the_shared_state_restores_a_viewer(show: Any) -> None:
    shared = BitViewer("-1/3", formats=("fp16", FloatFormat("custom", 5, 3, specials="fnuz")), rounding="up", update="1e+2")
    page, _ = show(shared, BitViewer(1))
    for fold in page.get_by_text("Share", exact=True).all():
        fold.click()
    fields = page.get_by_label("The whole state in one line")
    text = fields.nth(0).input_value()
    fields.nth(1).fill(text)
    fields.nth(1).press("Enter")
    for name in ("source", "formats", "codes", "rounding", "update"):
        assert trait(page, name, 1) == trait(page, name, 0)
    again = BitViewer.from_state(text)
    assert (again.source, again.codes, again.update) == (shared.source, shared.codes, shared.update)


def test_python_changes_are_drawn(show: Any) -> None:
    page, troubles = show(BitViewer(1, formats=("fp16",)))
    page.evaluate("window.models[0].set('source', 'fp16:0x7BFF')")
    expect(page.locator(".lb-stored")).to_have_text("65504")
    tiny = {"name": "tiny", "exponent_bits": 2, "fraction_bits": 1, "bias": 1, "specials": "finite", "signed": True}
    page.evaluate("tiny => window.models[0].set('formats', [...window.models[0].get('formats'), tiny])", tiny)
    expect(page.locator('[data-format="tiny"] .lb-stored')).to_have_text("6")
    assert troubles == []


def test_number_line_zooms_pans_and_picks(show: Any) -> None:
    page, troubles = show(NumberLine("0.1", formats=("fp16", "bf16")))
    plot = page.locator(".nl-plot")
    zoom = trait(page, "zoom")
    plot.focus()
    for key in ("+", "+", "-", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
    assert (trait(page, "zoom"), trait(page, "center")) == (zoom - 1, "0.1")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.wheel(0, -100)
    page.wait_for_function("zoom => window.models[0].state.zoom === zoom", arg=zoom - 1.25)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    assert trait(page, "source") == "0.1"
    page.get_by_role("button", name="To its gap").click()
    assert trait(page, "zoom") == -14 + 3
    expect(page.locator(".nl-canvas")).to_contain_text("nearest, to zero, down")
    page.mouse.click(box["x"] + 200, box["y"] + 60)
    assert trait(page, "source") != "0.1"
    assert troubles == []


def test_range_explorer_scales_what_fp16_loses(show: Any) -> None:
    gradients = torch.tensor([2.0**-26, 2.0**-25, 1.5 * 2.0**-25, 2.0**-20, 1.0, 70000.0])
    page, troubles = show(RangeExplorer(gradients, formats=("fp16", "bf16")))
    cells = page.locator(".lk-table tbody tr").first.locator("td")
    assert [cell.text_content() for cell in cells.all()] == ["33.33 %", "33.33 %", "16.67 %", "16.67 % to infinity"]
    page.get_by_role("button", name="Double the scale").click()
    assert trait(page, "shift") == 1
    expect(cells.first).to_have_text("16.67 %")
    page.get_by_label("Scale every number by a power of two").press("ArrowRight")
    expect(cells.first).to_have_text("0 %")
    assert trait(page, "shift") == 2
    assert troubles == []


@pytest.mark.parametrize(("dark", "width"), [(False, 1000), (True, 390)], ids=["light", "dark on a phone"])
def test_no_accessibility_violation(show: Any, dark: bool, width: int) -> None:
    custom = FloatFormat("custom", 5, 3, specials="fnuz")
    page, troubles = show(
        BitViewer("-0.1", formats=("fp64", "fp16", custom, "fp4_e2m1", "e8m0"), rounding="stochastic", update="1e-4"),
        NumberLine("0.1"),
        RangeExplorer({-30: 5, -20: 9, -3: 4, 17: 1}),
        dark=dark,
        width=width,
    )
    page.evaluate("document.querySelectorAll('.lb-toggle, summary').forEach((node) => node.click())")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    small = page.evaluate(
        """() => [...document.querySelectorAll(".labkit :is(button, select, summary, input:not([type=checkbox]))")]
            .map((node) => [node.textContent, node.getBoundingClientRect()])
            .filter(([, box]) => box.width && (box.width < 24 || box.height < 24)).map(([text]) => text)"""
    )
    assert small == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert troubles == []
