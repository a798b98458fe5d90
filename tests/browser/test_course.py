"""Every notebook of the course in a real JupyterLab: it runs, its widgets obey mouse and keys, and a restart is harmless."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from harness import click_control
from playwright.sync_api import Locator, Page, expect

from labkit.exercises import notebooks

pytestmark = [pytest.mark.browser, pytest.mark.course]
PATHS = notebooks.numbered()
SECONDS = 240

#: The ids of the widgets' models, in the order in which they are on the page.
_WIDGETS = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    const outputs = cells.filter((cell) => cell.cell_type === "code").flatMap((cell) => cell.outputs);
    const views = outputs.map((one) => one.data?.["application/vnd.jupyter.widget-view+json"]);
    return views.filter((view) => view).map((view) => view.model_id);
}"""
#: What Python holds of a widget, as text.
_STATE = """{{
    name: repr(value)
    for name, value in __import__("ipywidgets").widgets.widget._instances["{model}"].get_state().items()
    if not name.startswith("_")
}}"""
_RESTART = """async () => { await window.jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }"""
#: JupyterLab draws only the cells near the screen; a test wants them all.
_DRAW_ALL = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.notebookConfig = { ...notebook.notebookConfig, windowingMode: "none" };
}"""


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_notebook_runs_its_widgets_obey_and_it_runs_again(path: Path, lab: Any) -> None:
    shutil.copy(path, lab.folder / path.name)
    page, troubles = lab.open(path.name, run=False, timeout_s=SECONDS)
    page.evaluate(_DRAW_ALL)
    lab.run_all(page, timeout_s=SECONDS)
    models = page.evaluate(_WIDGETS)
    widgets = page.locator(".jp-OutputArea-output .labkit")
    expect(widgets).to_have_count(len(models), timeout=20_000)
    for index, model in enumerate(models):
        operate(lab, page, widgets.nth(index), _STATE.format(model=model))
    page.evaluate(_RESTART)
    lab.run_all(page, timeout_s=SECONDS)
    assert len(page.evaluate(_WIDGETS)) == len(models)
    expect(widgets).to_have_count(len(models), timeout=20_000)
    ours = [trouble for trouble in troubles if "labkit" in trouble.lower() or "anywidget" in trouble.lower()]
    # anywidget logs this after two seconds of a busy kernel, and draws the widget all the same: counted above.
    assert not [trouble for trouble in ours if "Failed to initialize model" not in trouble], ours
    page.close()


def operate(lab: Any, page: Page, widget: Locator, state: str) -> None:
    """Change the widget by mouse, then by keyboard; each time Python's `state` must change."""
    widget.scroll_into_view_if_needed()
    before = lab.python(page, state)
    click_control(widget)
    clicked = wait_for_change(lab, page, state, before)
    page.keyboard.press("ArrowUp")
    wait_for_change(lab, page, state, clicked)


def wait_for_change(lab: Any, page: Page, state: str, before: dict[str, str], timeout_s: float = 30) -> dict[str, str]:
    """What Python holds once it is no longer `before`."""
    deadline = time.monotonic() + timeout_s
    while (now := lab.python(page, state)) == before:
        assert time.monotonic() < deadline, f"Python saw no change of {before}"
    return now
