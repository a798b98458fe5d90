"""What all widgets share: one self-contained module each, scoped styles, traits that both ipywidgets 7 and 8 know."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import labkit.widgets
from labkit.widgets.base import STATIC, InvalidValue, LabWidget, checked, number_between, one_of, script, style

WIDGETS = [getattr(labkit.widgets, name) for name in labkit.widgets.__all__]


class Gauge(LabWidget):
    _shown = ("level",)
    level = checked(number_between(0, 10), default=5)
    mode = checked(one_of("slow", "fast"), default="slow")
    count = checked(number_between(0, 9, whole=True), default=0, sync=False)


def test_a_checked_trait_keeps_its_value_when_it_refuses() -> None:
    gauge = Gauge(level=7)
    for name, bad, sentence in [
        ("level", 11, "level: 11 is not a number from 0 to 10"),
        ("level", True, "level: True is not a number from 0 to 10"),
        ("mode", "medium", "mode: 'medium' is not one of slow, fast"),
        ("count", 1.5, "count: 1.5 is not a whole number from 0 to 9"),
    ]:
        with pytest.raises(InvalidValue) as caught:
            setattr(gauge, name, bad)
        assert str(caught.value) == sentence
    assert (gauge.level, gauge.mode, gauge.count) == (7, "slow", 0)
    assert repr(gauge) == "Gauge(level=7)"
    with pytest.raises(ValueError, match="level: 99"):
        Gauge(level=99)


def test_only_synced_traits_travel() -> None:
    state = Gauge().get_state()
    assert (state["level"], "count" in state) == (5, False)


@pytest.mark.parametrize("widget", WIDGETS)
def test_a_module_stands_alone(widget: Any, tmp_path: Path) -> None:
    code = str(widget._esm)
    assert not re.search(r"^\s*import\b|\bimport\(|https?://(?!www\.w3\.org/2000/svg)", code, re.MULTILINE)
    assert code.count("export default") == 1
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH")
    module = tmp_path / "widget.mjs"
    module.write_text(f"{code}\n", encoding="utf-8")
    probe = tmp_path / "probe.mjs"
    probe.write_text("const w = await import('./widget.mjs'); console.log(typeof w.default.render);", encoding="utf-8")
    assert subprocess.run([node, probe], capture_output=True, text=True, check=True).stdout == "function\n"


@pytest.mark.parametrize("file", sorted(STATIC.iterdir(), key=lambda file: file.name), ids=lambda file: file.name)
def test_every_rule_is_scoped(file: Any) -> None:
    if not file.name.endswith(".css"):
        assert file.name.endswith(".js")
        return
    sheet = re.sub(r"/\*.*?\*/", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    selectors = [part.strip() for part in re.findall(r"([^{};]+)\{", sheet)]
    for selector in selectors:
        if not selector.startswith("@"):
            assert ".labkit" in selector, selector
            for one in re.split(r",(?![^(]*\))", selector):
                assert ".labkit" in one, selector


@pytest.mark.parametrize("widget", WIDGETS)
def test_markup_is_never_built_from_text(widget: Any) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", str(widget._esm))


def test_theme_comes_before_the_widget() -> None:
    assert style("bit_viewer.css").index("--lk-paper:") < style("bit_viewer.css").index(".labkit-bits")
    assert script("codec.js", "dom.js").index("export function encode") < script("codec.js", "dom.js").index("makeRoot")


@pytest.mark.parametrize("name", ["BitViewer", "NumberLine", "RangeExplorer"])
def test_traits_survive_json(name: str) -> None:
    widget = getattr(labkit.widgets, name)
    instance = widget({0: 1}) if name == "RangeExplorer" else widget()
    state = {name: value for name, value in instance.get_state().items() if not name.startswith("_") and name != "layout"}
    assert json.loads(json.dumps(state, allow_nan=False)) == state
