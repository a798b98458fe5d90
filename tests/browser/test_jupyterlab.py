"""BitViewer in a real JupyterLab: the hand and Python change the same bits."""

from typing import Any

import nbformat
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

_CELLS = [
    "import torch\nfrom labkit.widgets import BitViewer, NumberLine, RangeExplorer",
    """viewer = BitViewer(1, formats=('fp16', 'bf16'))
seen = []
viewer.observe(lambda change: seen.append(change.new['fp16']), names=['codes'])
viewer""",
    """weights = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
live = BitViewer.of(weights, 1, formats=('fp32',))
live""",
    "NumberLine('0.1')",
    "RangeExplorer(torch.tensor([2.0**-25, 1.0]))",
]


def write_notebook(folder: Any, name: str, cells: list[str]) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / name)


def test_hand_and_python_share_the_bits(lab: Any) -> None:
    write_notebook(lab.folder, "widgets.ipynb", _CELLS)
    page, troubles = lab.open("widgets.ipynb")
    viewer, live = page.locator(".labkit-bits").nth(0), page.locator(".labkit-bits").nth(1)

    def python(expression: str, wanted: Any) -> None:
        lab.wait_for(page, expression, wanted)

    # Mouse: flip the lowest bit of 1.0.
    viewer.locator('[data-format="fp16"] [data-position="0"]').click()
    python("viewer.codes", {"fp16": "0x3C01", "bf16": "0x3F80"})
    python("viewer.value", 1.0009765625)
    # Keyboard: JupyterLab must not take these keys for itself.
    for key in ("ArrowUp", "End", "ArrowLeft", "Space"):
        page.keyboard.press(key)
    python("viewer.codes['fp16']", "0x3C00")
    python("seen", ["0x3C01", "0x3C02", "0x3C00"])
    field = viewer.get_by_label("Value", exact=True)
    field.fill("0.1")
    field.press("Enter")
    python("viewer.source", "0.1")
    # Python: the page follows.
    lab.python(page, "setattr(viewer, 'value', -2)")
    expect(viewer.locator('[data-format="fp16"] .lb-hex input')).to_have_value("0xC000")
    # A live tensor: the bit lands in its memory.
    live.locator('[data-format="bf16"] [data-position="15"]').click()
    python("weights.tolist()", [1.0, -2.0])
    expect(page.locator(".labkit-line .nl-canvas")).to_contain_text("fp16")
    expect(page.locator(".labkit-range tbody tr").first).to_contain_text("50 %")
    assert [trouble for trouble in troubles if "labkit" in trouble.lower() or "anywidget" in trouble.lower()] == []


def test_a_drag_in_jupyterlab_loses_no_update(lab: Any) -> None:
    cell = "from labkit.widgets import BitViewer\nviewer = BitViewer(0, formats=('fp32',))\nviewer"
    write_notebook(lab.folder, "drag.ipynb", [cell])
    page, _ = lab.open("drag.ipynb")
    bits = page.locator('[data-format="fp32"]')
    start, end = (bits.locator(f'[data-position="{position}"]').bounding_box() for position in (11, 0))
    page.mouse.move(start["x"] + 8, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(end["x"] + 8, end["y"] + 8, steps=20)
    page.mouse.up()
    expect(bits.locator(".lb-hex input")).to_have_value("0x00000FFF")
    lab.wait_for(page, "viewer.codes", {"fp32": "0x00000FFF"})
