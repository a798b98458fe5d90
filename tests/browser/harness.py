"""A bare page that runs a widget's module against a fake anywidget model, as a notebook front end would."""

import json
from typing import Any

from playwright.sync_api import Locator

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Widgets</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ margin: 8px; background: {paper}; color: {ink}; }} main > div {{ margin-bottom: 16px; }}</style></head>
<body class="{theme}"><main><h1 style="font: 600 18px sans-serif">Widgets</h1></main>
<script type="module">
class FakeModel {{
  constructor(state) {{ this.state = structuredClone(state); this.handlers = {{}}; this.saves = []; this.pending = {{}}; }}
  get(name) {{ return this.state[name]; }}
  set(name, value) {{
    if (JSON.stringify(this.state[name]) === JSON.stringify(value)) return;
    this.state[name] = value;
    this.pending[name] = value;
    for (const handler of this.handlers["change:" + name] ?? []) handler();
  }}
  on(name, handler) {{ (this.handlers[name] ??= []).push(handler); }}
  off(name, handler) {{ this.handlers[name] = (this.handlers[name] ?? []).filter((one) => one !== handler); }}
  save_changes() {{ this.saves.push(this.pending); this.pending = {{}}; }}
  send() {{}}
}}
window.models = [];
for (const {{ esm, css, state }} of {widgets}) {{
  document.head.append(Object.assign(document.createElement("style"), {{ textContent: css }}));
  const module = await import(URL.createObjectURL(new Blob([esm], {{ type: "text/javascript" }})));
  const model = new FakeModel(state);
  const el = document.createElement("div");
  document.querySelector("main").append(el);
  const controller = new AbortController();
  window.models.push(model);
  await module.default.initialize?.({{ model, signal: controller.signal }});
  await module.default.render({{ model, el, signal: controller.signal }});
}}
window.ready = true;
</script></body></html>
"""


def click_control(widget: Locator) -> None:
    """Click what changes the widget: its lowest bit, or where it has none its first slider, away from the middle."""
    bit = widget.locator('[data-position="0"]').first
    if bit.count():
        bit.click()
    else:
        slider = widget.get_by_role("slider").first
        box = slider.bounding_box()
        assert box is not None
        slider.click(position={"x": 0.7 * box["width"], "y": box["height"] / 2})


def shared_state(widget: Any) -> dict[str, Any]:
    """The traits of `widget` that its module reads: synced, without Jupyter's own."""
    own = set(type(widget).class_trait_names(sync=True)) - {"layout", "tabbable", "tooltip"}
    return {name: value for name, value in widget.get_state().items() if name in own and not name.startswith("_")}


def page_html(*widgets: Any, dark: bool = False) -> str:
    """A page that shows `widgets` one below the other; `window.models` holds their fake models."""
    parts = [{"esm": str(w._esm), "css": str(w._css), "state": shared_state(w)} for w in widgets]
    script = json.dumps(parts).replace("</", "<\\/")
    colours = {"paper": "#111" if dark else "#fff", "ink": "#eee" if dark else "#111", "theme": "dark" if dark else "light"}
    return _TEMPLATE.format(widgets=script, **colours)
