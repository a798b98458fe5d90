"""Notebooks as files: find them, fill in the solutions, run them and record what the run cost."""

import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from labkit.exercises.core import find

_TAG = "exercise:"

_PEAK = """import resource, sys
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))"""


#: The part of a title cell that says what the stored run cost.
_COST = re.compile(r"runs in about .* on a laptop · peak memory .* MB")


def folder() -> Path:
    """The `notebooks/` folder of this checkout; FileNotFoundError in an installed package, which has none."""
    path = Path(__file__).resolve().parents[2] / "notebooks"
    if not path.is_dir():
        raise FileNotFoundError("the notebooks are in the repository, not in the installed package; clone it first")
    return path


def numbered(numbers: list[str] | None = None) -> list[Path]:
    """The course's notebooks in order, or those whose number ("01") is asked for; ValueError names a missing one."""
    paths = sorted(folder().glob("[0-9][0-9]_*.ipynb"))
    if not numbers:
        return paths
    known = {path.name[:2]: path for path in paths}
    missing = [number for number in numbers if number not in known]
    if missing:
        raise ValueError(f"notebook {missing[0]!r} does not exist; there are: {', '.join(known)}")
    return [known[number] for number in numbers]


def exercise_of(cell: NotebookNode) -> str | None:
    """The exercise ID that a cell is the stub of."""
    tags = cell.metadata.get("tags", [])
    return next((tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG)), None)


def solve(notebook: NotebookNode) -> NotebookNode:
    """The same notebook with every stub replaced by its reference solution and all outputs dropped."""
    solved = nbformat.from_dict(notebook)
    for cell in solved.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        exercise_id = exercise_of(cell)
        if exercise_id is not None:
            cell.source = find(exercise_id).source()
    return solved


def source_hash(notebook: NotebookNode) -> str:
    """SHA-256 of what a run depends on in the notebook: the code cells, in order."""
    text = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(text.encode()).hexdigest()


def run(path: Path, *, scale: str) -> dict[str, Any]:
    """Execute the notebook at `path` in place at `scale`; returns and stores what the run cost.

    Stored in `metadata.labkit`: scale, source_sha256, seconds (wall clock, kernel start included) and peak_mb (10^6 bytes,
    the largest resident size of the kernel). Raises CellExecutionError when a cell fails; the file is then left as it was.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = {"LABKIT_SCALE": scale, "LABKIT_PROGRESS": "0"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    notebook.cells.append(nbformat.v4.new_code_cell(_PEAK))
    begin = time.perf_counter()
    try:
        resources = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources, record_timing=False).execute()
    finally:
        _restore(before)
    peak = int(notebook.cells.pop().outputs[0]["text"])
    cost = {
        "scale": scale,
        "source_sha256": source_hash(notebook),
        "seconds": round(time.perf_counter() - begin, 1),
        "peak_mb": round(peak / 1e6),
    }
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "widgets") if key in notebook.metadata}
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["labkit"] = cost
    notebook.cells[0].source = _COST.sub(_cost_in_words(cost), notebook.cells[0].source)
    path.write_text(nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return cost


def _cost_in_words(cost: dict[str, Any]) -> str:
    return f"runs in about {cost['seconds'] / 60:.1f} minutes on a laptop · peak memory {cost['peak_mb']} MB"


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def course_table() -> str:
    """The course as a Markdown table, its costs read from what the last stored run recorded."""
    rows = ["| notebook | you learn | runs in (min) | peak memory (MB) |", "| --- | --- | ---: | ---: |"]
    for path in numbered():
        notebook = nbformat.read(path, as_version=4)
        cost = notebook.metadata.get("labkit", {})
        minutes = f"{cost['seconds'] / 60:.1f}" if cost else "not run"
        title, first = _title_and_promise(notebook)
        rows.append(f"| [{title}](notebooks/{path.name}) | {first} | {minutes} | {cost.get('peak_mb', 'not run')} |")
    return "\n".join(rows)


def _title_and_promise(notebook: NotebookNode) -> tuple[str, str]:
    """The heading of the first cell, and its one-line promise (the first line of text under the heading)."""
    lines = [line.strip() for line in notebook.cells[0].source.splitlines() if line.strip()]
    return lines[0].removeprefix("# "), lines[1] if len(lines) > 1 else ""
