"""Every notebook as a file: fresh, clean, in the course's rhythm. (That they run is nbval's part of `make test`.)"""

import json
import re
import statistics
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from labkit.exercises import core, notebooks

PATHS = notebooks.numbered()
NAMES = [path.stem for path in PATHS]
LARGEST_BYTES = 1_500_000

each = pytest.mark.parametrize("path", PATHS, ids=NAMES)


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def markdown_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


@each
def test_stored_outputs_are_of_this_source(path: Path) -> None:
    notebook = read(path)
    assert notebook.metadata["labkit"]["source_sha256"] == notebooks.source_hash(notebook), f"run: make notebooks ({path.name})"
    assert notebook.metadata["labkit"]["scale"] == "laptop"
    assert all(cell.execution_count for cell in code_cells(notebook))


@each
def test_the_title_says_what_the_stored_run_cost(path: Path) -> None:
    notebook = read(path)
    assert notebooks._cost_in_words(notebook.metadata["labkit"]) in notebook.cells[0].source


@each
def test_the_title_says_what_to_do_without_labkit(path: Path) -> None:
    title = read(path).cells[0].source
    assert "No module named `labkit`?" in title and "`make lab`" in title and "`make colab`" in title


@each
def test_no_output_is_an_error_or_a_warning(path: Path) -> None:
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            text = output.get("text", "")
            assert not (output.get("name") == "stderr" and text.strip()), f"{cell.id}: {text}"


@each
def test_nothing_of_one_machine_is_stored(path: Path) -> None:
    found = re.findall(r"/(?:root|home|work|tmp|Users)/[\w./-]+", path.read_text(encoding="utf-8"))
    assert not found, found[:3]


@each
def test_the_file_is_valid_small_and_has_stable_ids(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size <= LARGEST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(re.fullmatch(r"[a-z0-9-]+", cell.id) for cell in notebook.cells)


@each
def test_every_image_has_a_text_in_its_place(path: Path) -> None:
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                assert output.metadata.get("image/png", {}).get("alt") or output.metadata.get("alt"), cell.id


@each
def test_the_rhythm_of_text_and_code(path: Path) -> None:
    notebook = read(path)
    code, text = code_cells(notebook), markdown_cells(notebook)
    lines = [len(cell.source.splitlines()) for cell in code]
    assert len(text) >= len(code)
    assert statistics.median(lines) <= 8 and max(lines) <= 25
    assert statistics.median(len(cell.source.split()) for cell in text) <= 60


@each
def test_the_fixed_order(path: Path) -> None:
    notebook = read(path)
    assert notebook.cells[0].source.startswith(f"# {path.name[:2]} · ")
    headings = [line for cell in markdown_cells(notebook) for line in cell.source.splitlines() if line.startswith("#")]
    titles = [re.sub(r"^#+ ", "", heading) for heading in headings]
    assert {"Exercises", "What you saw"} <= set(titles)
    assert titles.index("Exercises") < titles.index("What you saw")
    assert any("You will" in cell.source for cell in markdown_cells(notebook)[:2])


@each
def test_stubs_and_checks_match_the_exercises(path: Path) -> None:
    notebook = read(path)
    ids = [exercise.id for exercise in core.exercises_of(path.name[:2])]
    stubs = [found for cell in code_cells(notebook) if (found := notebooks.exercise_of(cell))]
    checks = [found for cell in code_cells(notebook) for found in re.findall(r'check\("([^"]+)"', cell.source)]
    assert sorted(stubs) == sorted(ids)
    assert set(checks) == set(ids)


@each
def test_a_stub_defines_what_its_solution_defines(path: Path) -> None:
    for cell in code_cells(read(path)):
        exercise_id = notebooks.exercise_of(cell)
        if exercise_id is None:
            continue
        name = core.find(exercise_id).solution.__name__
        assert re.search(rf"^(?:def|class) {name}\b", cell.source, re.MULTILINE), exercise_id
        scope: dict[str, object] = {}
        exec(compile(f"from __future__ import annotations\n{cell.source}", "stub", "exec"), scope_with_torch(scope))
        assert core.is_stub(scope[name]), f"{exercise_id} is not a stub"


def scope_with_torch(scope: dict[str, object]) -> dict[str, object]:
    import torch

    scope.update(torch=torch, nn=torch.nn, F=torch.nn.functional)
    return scope


@each
def test_compared_cells_have_an_output_to_compare_with(path: Path) -> None:
    for cell in code_cells(read(path)):
        if "NBVAL_CHECK_OUTPUT" in cell.source or "nbval-check-output" in cell.metadata.get("tags", []):
            assert cell.outputs, cell.source


@each
def test_solving_replaces_every_stub_and_keeps_the_rest(path: Path) -> None:
    notebook = read(path)
    solved = notebooks.solve(notebook)
    for before, after in zip(notebook.cells, solved.cells, strict=True):
        exercise_id = notebooks.exercise_of(before) if before.cell_type == "code" else None
        assert after.source == (core.find(exercise_id).source() if exercise_id else before.source)
    json.dumps(solved)


def test_an_unknown_notebook_gets_one_sentence() -> None:
    with pytest.raises(ValueError, match="notebook '77' does not exist; there are: 00"):
        notebooks.numbered(["77"])
