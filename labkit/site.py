"""The course as static pages: notebooks with their stored outputs, working widgets, and the reference of labkit."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from labkit.exercises import notebooks

#: The scripts that draw widgets without a kernel, and formulas, from the npm registry, in the tested versions.
NPM_PACKAGES = {"requirejs": "2.3.8", "@jupyter-widgets/html-manager": "1.0.15", "mathjax": "3.2.2"}

#: Modules of the reference, by page.
REFERENCE = {
    "numbers": ["labkit.numbers.formats", "labkit.numbers.encode", "labkit.numbers.decode", "labkit.numbers.tensors"],
    "techniques": [
        "labkit.techniques.precision",
        "labkit.techniques.step",
        "labkit.techniques.checkpointing",
        "labkit.techniques.ranks",
    ],
    "memory": [
        "labkit.memory.meter",
        "labkit.memory.report",
        "labkit.memory.prediction",
        "labkit.memory.planning",
        "labkit.memory.placement",
        "labkit.memory.sharding",
    ],
    "training": ["labkit.training.data", "labkit.training.model", "labkit.training.loop"],
}


def build(target: Path) -> Path:
    """Build the site into `target` and return its first page.

    Raises FileNotFoundError when npm is missing and RuntimeError with the tool's last words when a step fails.
    """
    root = notebooks.folder().parent
    source = target.parent / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "docs", source)
    _copy_notebooks(source / "notebooks")
    _write_reference(source / "api")
    _vendor_scripts(source / "_static" / "vendor", target.parent / "site-scripts")
    _run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(source), str(target)])
    return target / "index.html"


def _copy_notebooks(folder: Path) -> None:
    folder.mkdir()
    for path in notebooks.numbered():
        shutil.copy(path, folder / path.name)


def _write_reference(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for room, modules in REFERENCE.items():
        summary = (import_module(f"labkit.{room}").__doc__ or "").strip().splitlines()[0]
        blocks = [f"```{{eval-rst}}\n.. automodule:: {module}\n```" for module in modules]
        (folder / f"{room}.md").write_text("\n\n".join([f"# labkit.{room}", summary, *blocks]) + "\n", encoding="utf-8")


def _vendor_scripts(folder: Path, cache: Path) -> None:
    """Put require.js, the widget manager, MathJax and anywidget's loader beside the pages."""
    folder.mkdir(parents=True)
    wanted = [f"{name}@{version}" for name, version in NPM_PACKAGES.items()]
    if _installed(cache) != NPM_PACKAGES:
        if shutil.which("npm") is None:
            raise FileNotFoundError(
                "npm is not installed; the site's widgets and formulas need three scripts from its registry"
            )
        _run(["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(cache), *wanted])
    modules = cache / "node_modules"
    for script in ("requirejs/require.js", "@jupyter-widgets/html-manager/dist/embed-amd.js", "mathjax/es5/tex-svg.js"):
        shutil.copy(modules / script, folder / Path(script).name)
    loader = Path(sys.prefix) / "share" / "jupyter" / "nbextensions" / "anywidget" / "index.js"
    shutil.copy(loader, folder / "anywidget.js")


def _installed(cache: Path) -> dict[str, str]:
    files = {name: cache / "node_modules" / name / "package.json" for name in NPM_PACKAGES}
    return {name: json.loads(path.read_text())["version"] for name, path in files.items() if path.exists()}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
