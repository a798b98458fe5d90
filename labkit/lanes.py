"""Run the self-contained notebooks in other environments: Colab's versions, the lowest declared ones, the newest ones."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from labkit import colab
from labkit.exercises import notebooks

LANES = ("colab", "lowest", "newest")

#: What runs notebooks, beside the package's own requirements.
_RUNNER = ("pytest", "nbval", "pytest-xdist", "ipykernel")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "LABKIT_SCALE": "ci", "LABKIT_PROGRESS": "0"}
_NBVAL = ("--nbval-lax", "--nbval-cell-timeout=300", "--nbval-kernel-name=python3", "-q", "-p", "no:cacheprovider")


def lane(name: str, folder: Path) -> int:
    """Make the environment of lane `name` in `folder`, run every self-contained notebook there, return pytest's status.

    Raises ValueError for an unknown lane and RuntimeError with pip's words when the environment cannot be made.
    """
    if name not in LANES:
        raise ValueError(f"lane {name!r} is unknown; choose one of {', '.join(LANES)}")
    python = _environment(name, folder / f"lane-{name}")
    paths = [path.resolve() for path in colab.build(folder / "colab")]
    # The first notebook alone: its first cell installs labkit, which two workers must not do at once.
    first = _pytest(python, paths[:1], workers=0)
    rest = _pytest(python, paths[1:], workers=2)
    return first or rest


def constraints(name: str) -> list[str]:
    """The versions that lane `name` holds: a file's, or for `lowest` the lower bound of every range but torch's."""
    root = notebooks.folder().parent
    if name != "lowest":
        return (root / "tests" / "lanes" / f"{name}.txt").read_text().splitlines()
    return ["torch==2.13.0", *(_lowest(requirement) for requirement in _requirements(root) if requirement.name != "torch")]


def _requirements(root: Path, extras: tuple[str, ...] = ("lab", "test")) -> list[Requirement]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in [*project["dependencies"], *optional]]


def _lowest(requirement: Requirement) -> str:
    (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
    return f"{requirement.name}=={bound}" if bound.count(".") > 1 else f"{requirement.name}=={bound}.*"


def _environment(name: str, folder: Path) -> Path:
    """A venv with what the notebooks need but labkit itself; its interpreter."""
    python = folder / "bin" / "python"
    ready = folder / "ready"
    held = folder.parent / f"lane-{name}.txt"
    held.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(constraints(name)) + "\n"
    if ready.exists() and held.exists() and held.read_text() == text:
        return python
    held.write_text(text)
    needed = [requirement.name for requirement in _requirements(notebooks.folder().parent, extras=("lab",))]
    needed.remove("jupyterlab")  # the notebooks run without it, and Colab has none
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--constraint", str(held), *needed, *_RUNNER])
    ready.touch()
    return python


def _pytest(python: Path, paths: list[Path], *, workers: int) -> int:
    command = [str(python), "-m", "pytest", *_NBVAL, "-n", str(workers), "--dist", "loadscope", *map(str, paths)]
    return subprocess.run(command, env=os.environ | _ENVIRONMENT).returncode


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-1500:]}")
