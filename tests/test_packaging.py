"""The files that bring the course onto a machine agree with each other, and their commands work as the README writes them."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from labkit.exercises import notebooks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = dict(
    line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")
)
LOCKED = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in LOCK.items()}


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *extras["lab"], *extras["test"]]


@pytest.mark.parametrize("requirement", requirements())
def test_the_lock_has_an_allowed_version_of_every_requirement(requirement: str) -> None:
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    assert wanted.specifier.contains(LOCKED[re.sub(r"[-_.]+", "-", wanted.name).lower()])


def test_the_lock_names_torch_and_no_build_of_it() -> None:
    assert LOCKED["torch"] == "2.13.0"


@pytest.mark.parametrize(
    "name, version",
    {
        "torch": "2.11.0",
        "ipywidgets": "7.7.1",
        "anywidget": "0.9.21",
        "pandas": "2.2.3",
        "numpy": "2.1.3",
        "matplotlib": "3.10.0",
    }.items(),
)
def test_the_ranges_admit_the_versions_of_colab(name: str, version: str) -> None:
    from packaging.requirements import Requirement

    (wanted,) = [r for r in map(Requirement, requirements()) if r.name == name]
    assert wanted.specifier.contains(version)


def test_the_distribution_is_not_called_labkit() -> None:
    assert PROJECT["name"] != "labkit"


def test_conda_defers_to_pyproject_and_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert f"python{PROJECT['requires-python']}" in conda and "pip" in conda
    assert pip == ["--constraint requirements.lock", "--editable .[lab,test]"]


def test_the_wheel_holds_the_code_the_widgets_and_the_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {path.name for path in (ROOT / "data").iterdir() if path.is_file()}
    static = {path.name for path in (ROOT / "labkit/widgets/static").iterdir()}
    assert {f"labkit/data/{name}" for name in data} <= names
    assert {f"labkit/widgets/static/{name}" for name in static} <= names
    assert not any(name.startswith(("tests/", "notebooks/")) for name in names)


def test_data_files_are_those_whose_checksum_is_recorded() -> None:
    readme = (ROOT / "data/README.md").read_text()
    for path in (ROOT / "data").iterdir():
        if path.name != "README.md" and path.is_file():
            assert path.name in readme, f"data/README.md says nothing of {path.name}"
            assert hashlib.sha256(path.read_bytes()).hexdigest() in readme, (
                f"the checksum of {path.name} is not the recorded one"
            )


def test_the_course_table_of_the_readme_is_the_measured_one() -> None:
    assert notebooks.course_table() in (ROOT / "README.md").read_text()


def commands_of_the_readme() -> list[str]:
    """The `labkit` commands in the README's shell blocks, those marked as long left to the reader."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m labkit ") and "# long" not in line]


def test_the_readme_s_commands_run_as_written_one_after_another(tmp_path: Path) -> None:
    commands = commands_of_the_readme()
    assert len(commands) >= 3
    for command in commands:
        words = command.split("#")[0].split()[1:]
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def python_blocks_of_the_readme() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", python_blocks_of_the_readme())
def test_the_readme_s_python_runs_as_written(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def fake_python(folder: Path, version: str) -> Path:
    """An interpreter that is the real one but for what it says its version is."""
    major, minor = version.split(".")
    path = folder / "python"
    body = f"import sys; sys.version_info = ({major}, {minor}, 0, 'final', 0)\n"
    path.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "{body}$1"\n')
    path.chmod(0o755)
    return path


def test_an_interpreter_that_is_too_old_gets_one_sentence(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = fake_python(tmp_path, "3.9")
    done = subprocess.run(["make", "lab", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and not (tmp_path / ".venv").exists()
    assert "Python 3.9 is too old: this course needs Python 3.11 or newer" in done.stderr


def test_an_interrupted_install_is_started_again(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/half").touch()
    done = subprocess.run(["make", ".venv/ready", "PYTHON=false"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and (tmp_path / ".venv/half").exists(), "nothing is deleted for a Python that does not run"
    plan = subprocess.run(["make", "-n", ".venv/ready"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "rm -rf .venv" in plan
