"""The arrows between the rooms of labkit point down only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "labkit"

#: What each room may import of ours, itself apart.
ALLOWED = {
    "numbers": set(),
    "techniques": {"numbers", "workload"},
    "memory": {"numbers", "workload", "techniques"},
    "training": {"numbers", "workload", "techniques"},
    "widgets": {"numbers", "techniques", "memory"},
    "exercises": {"numbers", "workload", "techniques", "memory", "training", "experiment", "widgets"},
}
#: Small utilities that any room but numbers may use; numbers may ask for data files.
HALL = {"plots", "hardware", "progress", "resources", "scale"}


def labkit_imports(path: Path) -> set[str]:
    """The second part of every `labkit.X` that the file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("labkit.")}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            parts = node.module.split(".")
            if parts[0] == "labkit":
                found |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            raise AssertionError(f"{path} imports relatively; the arrows are read from absolute imports")
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    hall = {"resources"} if room == "numbers" else HALL
    for path in (PACKAGE / room).rglob("*.py"):
        extra = labkit_imports(path) - ALLOWED[room] - hall - {room}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


def test_workload_imports_no_room() -> None:
    assert not labkit_imports(PACKAGE / "workload.py")


def test_every_room_is_held() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders - {"commands"} == set(ALLOWED)


@pytest.mark.parametrize("module", ["labkit", "labkit.numbers"])
def test_numbers_needs_the_standard_library_only(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'pandas', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
