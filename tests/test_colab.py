"""Self-contained notebooks: they bring labkit along, and nothing else changes."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit import colab, lanes
from labkit.exercises import notebooks

LARGEST_EXTRA_BYTES = 1_500_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return colab.build(tmp_path_factory.mktemp("colab"), repository="owner/name", tag="v1")


def test_each_notebook_gains_one_cell_and_a_badge(built: list[Path]) -> None:
    for plain_path, path in zip(notebooks.numbered(), built, strict=True):
        plain, made = nbformat.read(plain_path, 4), nbformat.read(path, 4)
        nbformat.validate(made)
        assert made.cells[1].id == "install-labkit"
        rest = [made.cells[0], *made.cells[2:]]
        assert [cell.source for cell in rest[1:]] == [cell.source for cell in plain.cells[1:]]
        assert f"github/owner/name/blob/v1/colab/{path.name}" in made.cells[0].source


def test_it_is_little_larger_than_the_plain_one(built: list[Path]) -> None:
    for plain_path, path in zip(notebooks.numbered(), built, strict=True):
        assert path.stat().st_size - plain_path.stat().st_size <= LARGEST_EXTRA_BYTES


def test_the_first_cell_installs_labkit_with_its_data_and_twice_is_harmless(built: list[Path], tmp_path: Path) -> None:
    cell = nbformat.read(built[0], 4).cells[1].source
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    script = tmp_path / "cell.py"
    script.write_text(cell)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    outputs = [
        subprocess.run([python, script], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path).stdout
        for _ in range(2)
    ]
    assert outputs[0].startswith("labkit is installed.") and outputs[1].startswith("labkit is here already.")
    probe = "import labkit; from labkit.resources import data_file; print(labkit.__file__, data_file('README.md'))"
    where = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert all(part.startswith(str(tmp_path / "venv")) for part in where.stdout.split())


def test_a_damaged_notebook_says_so(built: list[Path], tmp_path: Path) -> None:
    cell = nbformat.read(built[0], 4).cells[1].source
    script = tmp_path / "cell.py"
    script.write_text(re.sub(r'WHEEL = "UEs', 'WHEEL = "UEt', cell))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1 and "is damaged; download the notebook again" in done.stderr


@pytest.mark.parametrize(
    "repository, tag, sentence",
    [("owner/name", None, "needs both"), (None, "v1", "needs both"), ("name", "v1", "'name' is not of the form owner/name")],
)
def test_half_a_badge_gets_one_sentence(repository: str | None, tag: str | None, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        colab.build(tmp_path, repository=repository, tag=tag)


def test_the_lowest_lane_holds_the_lower_bound_of_every_range() -> None:
    held = lanes.constraints("lowest")
    assert "ipywidgets==7.7.1" in held and "anywidget==0.9.21" in held and "pandas==2.2.3" in held
    assert "torch==2.13.0" in held and not any(line.startswith("torch==2.11") for line in held)


def test_an_unknown_lane_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lane 'moon' is unknown; choose one of colab, lowest, newest"):
        lanes.lane("moon", tmp_path)
