"""Every notebook of the course in a real JupyterLab: it runs, its widgets are on screen, and it runs again after a restart."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from labkit.exercises import notebooks

pytestmark = [pytest.mark.browser, pytest.mark.course]
PATHS = notebooks.numbered()
SECONDS = 240

_WIDGETS = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    const outputs = cells.filter((cell) => cell.cell_type === "code").flatMap((cell) => cell.outputs);
    return outputs.filter((one) => one.data && "application/vnd.jupyter.widget-view+json" in one.data).length;
}"""
_RESTART = """async () => { await window.jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }"""
#: JupyterLab draws only the cells near the screen; a test wants them all.
_DRAW_ALL = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.notebookConfig = { ...notebook.notebookConfig, windowingMode: "none" };
}"""


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_notebook_runs_shows_its_widgets_and_runs_again(path: Path, lab: Any) -> None:
    shutil.copy(path, lab.folder / path.name)
    page, troubles = lab.open(path.name, run=False, timeout_s=SECONDS)
    page.evaluate(_DRAW_ALL)
    lab.run_all(page, timeout_s=SECONDS)
    count = page.evaluate(_WIDGETS)
    expect(page.locator(".jp-OutputArea-output .labkit")).to_have_count(count, timeout=20_000)
    page.evaluate(_RESTART)
    lab.run_all(page, timeout_s=SECONDS)
    assert page.evaluate(_WIDGETS) == count
    expect(page.locator(".jp-OutputArea-output .labkit")).to_have_count(count, timeout=20_000)
    ours = [trouble for trouble in troubles if "labkit" in trouble.lower() or "anywidget" in trouble.lower()]
    # anywidget logs this after two seconds of a busy kernel, and draws the widget all the same: counted above.
    assert not [trouble for trouble in ours if "Failed to initialize model" not in trouble], ours
    page.close()
