"""Self-contained notebooks: the wheel of labkit travels inside the first cell, so Colab needs no repository and no index."""

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.exercises import notebooks

#: The first cell. It installs without dependencies, since Colab has them all and replacing its numpy breaks the session.
_INSTALL = """# Installs labkit from the wheel inside this cell: no network, nothing else changes, and twice is harmless.
import base64, hashlib, importlib.util, pathlib, subprocess, sys, tempfile

NAME, SHA256 = "{name}", "{sha256}"
WHEEL = "{payload}"


def install_labkit():
    data = base64.b64decode(WHEEL)
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise SystemExit("The wheel inside this cell is damaged; download the notebook again.")
    marker = pathlib.Path(tempfile.gettempdir()) / f"labkit-{{SHA256[:16]}}-{{sys.prefix.replace('/', '_')}}"
    if importlib.util.find_spec("labkit") and marker.exists():
        return "labkit is here already."
    with tempfile.TemporaryDirectory() as folder:
        wheel = pathlib.Path(folder) / NAME
        wheel.write_bytes(data)
        options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        done = subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit("labkit could not be installed; restart the runtime and run this again. pip: " + done.stderr[-300:])
    importlib.invalidate_caches()
    marker.touch()
    return "labkit is installed."


print(install_labkit())
missing = [name for name in ("torch", "pandas", "matplotlib", "jinja2", "psutil", "tqdm", "ipywidgets", "anywidget")
           if importlib.util.find_spec(name) is None]
if missing:
    print("Not installed here, and needed by this notebook:", ", ".join(missing))"""

_BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({url})"


def build_wheel(folder: Path) -> Path:
    """Build labkit's wheel, data and widgets included, into `folder`; RuntimeError with pip's words where that fails."""
    root = notebooks.folder().parent
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the wheel could not be built: {done.stderr.strip()}")
    (wheel,) = folder.glob("limited_memory_lab-*.whl")
    return wheel


def self_contained(notebook: NotebookNode, wheel: Path, *, badge_url: str | None = None) -> NotebookNode:
    """`notebook` with an installing cell in front and without its outputs; with `badge_url`, a Colab badge under the title."""
    import hashlib

    made = nbformat.from_dict(notebook)
    data = wheel.read_bytes()
    source = _INSTALL.format(
        name=wheel.name, sha256=hashlib.sha256(data).hexdigest(), payload=base64.b64encode(data).decode("ascii")
    )
    cell = nbformat.v4.new_code_cell(source, metadata={"cellView": "form", "jupyter": {"source_hidden": True}})
    cell.id = "install-labkit"
    for other in made.cells:
        if other.cell_type == "code":
            other.outputs, other.execution_count = [], None
    if badge_url is not None:
        title, _, rest = made.cells[0].source.partition("\n")
        made.cells[0].source = f"{title}\n\n{_BADGE.format(url=badge_url)}\n{rest}"
    made.cells.insert(1, cell)
    made.metadata.pop("widgets", None)
    made.metadata.pop("labkit", None)
    return made


def build(target: Path, *, repository: str | None = None, tag: str | None = None) -> list[Path]:
    """Write a self-contained copy of every notebook into `target`.

    With `repository` ("owner/name") and `tag`, each gets a badge that opens `colab/NAME.ipynb` of that tag in Colab.
    Raises ValueError when only one of the two is given, or the repository is not of that form.
    """
    if (repository is None) != (tag is None):
        raise ValueError("a badge needs both REPO=owner/name and TAG=...; only one was given")
    if repository is not None and repository.count("/") != 1:
        raise ValueError(f"repository {repository!r} is not of the form owner/name")
    target.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        for path in notebooks.numbered():
            url = f"https://colab.research.google.com/github/{repository}/blob/{tag}/colab/{path.name}" if repository else None
            made = self_contained(nbformat.read(path, as_version=4), wheel, badge_url=url)
            nbformat.write(made, target / path.name)
            written.append(target / path.name)
    return written
