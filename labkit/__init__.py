"""labkit: exact float formats, memory measured and predicted, and the techniques for training with limited memory.

The names below are loaded on first use, so that `labkit.numbers` stays importable with the standard library alone.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "check": "labkit.exercises",
    "hint": "labkit.exercises",
    "solution": "labkit.exercises",
    "Workload": "labkit.workload",
    "start": "labkit.notebook",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    """Load a public name from its room, or a submodule such as `labkit.plots`, when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    try:
        return import_module(f"labkit.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"labkit.{name}":
            raise
        raise AttributeError(f"module 'labkit' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
