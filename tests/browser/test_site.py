"""The course as static pages: each is clean and accessible, and its widgets work without a kernel and without a network."""

import functools
import html
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import Troubles
from harness import click_control
from playwright.sync_api import Browser, Locator, expect

from labkit import site
from labkit.exercises import core, notebooks

pytestmark = [pytest.mark.browser, pytest.mark.site]

LARGEST_FIRST_PAGE = 1_500_000
NOTEBOOKS = [f"notebooks/{path.stem}.html" for path in notebooks.numbered()]
PAGES = ["index.html", "workshop.html", "validation.html", *(f"api/{room}.html" for room in site.REFERENCE), *NOTEBOOKS]
WITH_WIDGETS = [
    f"notebooks/{path.stem}.html" for path in notebooks.numbered() if "widget-view+json" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    if shutil.which("npm") is None:
        message = "no npm on the PATH: it fetches the scripts that draw the site's widgets and formulas"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    begin = time.perf_counter()
    first = site.build(tmp_path_factory.mktemp("build") / "site")
    print(f"\nsite built in {time.perf_counter() - begin:.0f} s")
    return first.parent


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def url(built: Path) -> Iterator[str]:
    """The site on localhost."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_clean_accessible_and_fits_a_phone(name: str, url: str, browser: Browser) -> None:
    for width, scheme in ((1200, "light"), (390, "dark")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page, troubles = context.new_page(), Troubles()
        troubles.watch(page)
        page.goto(f"{url}/{name}", wait_until="networkidle")
        assert of_ours(troubles) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        results = Axe().run(page)
        assert results.violations_count == 0, f"{scheme}: {results.generate_report()}"
        context.close()


def of_ours(troubles: Troubles) -> list[str]:
    """What the console complained about, but for a remark of the widget manager's validator on its own schema."""
    return [trouble for trouble in troubles if not trouble.startswith("strict mode: use allowUnionTypes")]


@pytest.mark.parametrize("name", WITH_WIDGETS)
def test_widgets_work_from_a_folder_without_a_network(name: str, built: Path, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    page, troubles = context.new_page(), Troubles()
    troubles.watch(page)
    page.goto((built / name).as_uri())
    widgets = page.locator(".labkit")
    expect(widgets.first).to_be_visible(timeout=20_000)
    for index in range(widgets.count()):
        operate(widgets.nth(index))
    assert of_ours(troubles) == []
    context.close()


def operate(widget: Locator) -> None:
    """Change the widget by mouse, then by keyboard; each time what it shows must change."""
    page = widget.page
    before = shown(widget)
    click_control(widget)
    page.wait_for_function("([node, before]) => " + _SHOWN + "(node) !== before", arg=[widget.element_handle(), before])
    clicked = shown(widget)
    page.keyboard.press("ArrowUp")
    page.wait_for_function("([node, before]) => " + _SHOWN + "(node) !== before", arg=[widget.element_handle(), clicked])


#: The texts and the fields' values of a widget.
_SHOWN = "((node) => node.innerText + [...node.querySelectorAll('input')].map((input) => input.value).join())"


def shown(widget: Locator) -> str:
    return str(widget.evaluate(_SHOWN))


def test_the_first_page_is_small_and_widgets_come_soon(url: str, browser: Browser) -> None:
    page = browser.new_page()
    sizes: list[int] = []
    page.on("response", lambda response: sizes.append(len(response.body())))
    page.goto(f"{url}/index.html", wait_until="networkidle")
    first = sum(sizes)
    assert first <= LARGEST_FIRST_PAGE
    begin = time.perf_counter()
    page.goto(f"{url}/{WITH_WIDGETS[0]}")
    expect(page.locator(".labkit [data-position]").first).to_be_visible(timeout=20_000)
    print(f"\nfirst page {first / 1e6:.2f} MB; widgets on screen after {time.perf_counter() - begin:.2f} s")
    page.close()


def test_no_solution_is_on_the_site(built: Path) -> None:
    pages = "".join((built / name).read_text(encoding="utf-8") for name in NOTEBOOKS)
    text = " ".join(html.unescape(re.sub("<[^>]+>", "", pages)).split())
    for exercise in core.all_exercises():
        assert " ".join(exercise.source().split()) not in text, exercise.id


def test_search_finds_the_bit_viewer(url: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{url}/search.html?q=BitViewer")
    expect(page.locator("#search-results li").first).to_be_visible(timeout=20_000)
    page.close()
