"""Where a training step's memory goes: measured, predicted, planned.

The names below are loaded on first use, so that `import labkit.memory` stays light.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "CheckpointPlan": "labkit.memory.placement",
    "MemoryReport": "labkit.memory.report",
    "Tracker": "labkit.memory.tracker",
    "format_bytes": "labkit.memory.units",
    "measure": "labkit.memory.meter",
    "measure_workload": "labkit.memory.meter",
    "plan_checkpointing": "labkit.memory.placement",
    "parse_bytes": "labkit.memory.units",
    "saved_tensors": "labkit.memory.saved",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    """Load a public name, or a module of this room, when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'labkit.memory' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
