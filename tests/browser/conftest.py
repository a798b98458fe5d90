"""Fixtures for tests in a real browser: Chromium, bare pages with a fake model, and a real JupyterLab.

Every wait is for a condition, never for a time. Without Chromium the tests are skipped, but not on CI, where they fail.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import page_html
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the session."""
    path = find_chromium()
    if path is None:
        message = "no Chromium on the PATH: install the package chromium to run the browser tests"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield instance
        instance.close()


class Troubles(list[str]):
    """What the console complained about on a page."""

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.append(str(error)))


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., tuple[Page, Troubles]]]:
    """A function (*widgets, dark=False, width=1000) -> (page, troubles): the widgets on a bare page, each with a fake model."""
    contexts: list[BrowserContext] = []

    def open_page(*widgets: Any, dark: bool = False, width: int = 1000, touch: bool = False) -> tuple[Page, Troubles]:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(page_html(*widgets, dark=dark), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, has_touch=touch)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page, troubles = context.new_page(), Troubles()
        troubles.watch(page)
        page.goto(file.as_uri())
        page.wait_for_function("window.ready === true")
        return page, troubles

    yield open_page
    for context in contexts:
        context.close()


class Lab:
    """A running JupyterLab over one folder, and a browser context to open its notebooks in."""

    def __init__(self, url: str, folder: Path, browser: Browser) -> None:
        self.url, self.folder = url, folder
        self.context = browser.new_context(viewport={"width": 1400, "height": 1000})

    def open(self, name: str, *, run: bool = True, timeout_s: float = 60) -> tuple[Page, Troubles]:
        """Open the notebook `name` of the folder and, unless `run` is false, run all its cells; return when they are done.

        A cell that raised is an AssertionError with its traceback.
        """
        page, troubles = self.context.new_page(), Troubles()
        troubles.watch(page)
        page.goto(f"{self.url}/lab/tree/{name}?reset")
        expect(page.locator(".jp-Notebook")).to_be_visible(timeout=1000 * timeout_s)
        page.wait_for_function(_KERNEL_IDLE, timeout=1000 * timeout_s)
        if run:
            self.run_all(page, timeout_s=timeout_s)
        return page, troubles

    def run_all(self, page: Page, *, timeout_s: float = 60) -> None:
        """Run every cell of the open notebook and wait for the last one."""
        done = page.evaluate(
            """async () => {
                const app = window.jupyterapp;
                const panel = app.shell.currentWidget;
                await panel.revealed;
                await app.commands.execute("notebook:run-all-cells");
                const cells = panel.content.model.sharedModel.cells.filter((cell) => cell.cell_type === "code");
                const errors = cells.flatMap((cell) => cell.outputs.filter((one) => one.output_type === "error"));
                return errors.map((one) => [one.ename, one.evalue, ...(one.traceback ?? [])].join("\\n"));
            }"""
        )
        assert not done, "\n".join(done)
        page.wait_for_function(_KERNEL_IDLE, timeout=1000 * timeout_s)

    def python(self, page: Page, expression: str) -> Any:
        """The value of a Python expression in the open notebook's kernel, through JSON."""
        code = f"import json; print(json.dumps({expression}))"
        text = page.evaluate(_RUN_PYTHON, code)
        return json.loads(text)

    def wait_for(self, page: Page, expression: str, wanted: Any, *, timeout_s: float = 20) -> None:
        """Wait until a Python expression in the open notebook's kernel has the value `wanted`."""
        deadline = time.monotonic() + timeout_s
        while (got := self.python(page, expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} stayed {got!r}, not {wanted!r}"


_KERNEL_IDLE = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.status === "idle" && kernel?.connectionStatus === "connected";
}"""
_RUN_PYTHON = """async (code) => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const future = kernel.requestExecute({ code, store_history: false });
    let text = "";
    future.onIOPub = (message) => {
        if (message.header.msg_type === "stream") text += message.content.text;
        if (message.header.msg_type === "error") text += message.content.evalue;
    };
    await future.done;
    return text;
}"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not answer at {url}:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A real JupyterLab over a fresh folder (`lab.folder`): put a notebook there, then `lab.open(name)`."""
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    port = _free_port()
    log = home / "server.log"
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    command += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    quiet = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}', encoding="utf-8")
    with log.open("wb") as sink:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/status", server, log)
            session = Lab(f"http://127.0.0.1:{port}", folder, browser)
            yield session
            session.context.close()
        finally:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
