"""Where a training step's memory goes: measured, predicted, planned.

The names below are loaded on first use, so that `import labkit.memory` stays light.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "CheckpointPlan": "labkit.memory.placement",
    "Fit": "labkit.memory.planning",
    "MemoryReport": "labkit.memory.report",
    "Prediction": "labkit.memory.prediction",
    "Tracker": "labkit.memory.tracker",
    "UnknownMemory": "labkit.memory.trace",
    "compare": "labkit.memory.planning",
    "format_bytes": "labkit.memory.units",
    "max_batch": "labkit.memory.planning",
    "measure": "labkit.memory.meter",
    "measure_workload": "labkit.memory.meter",
    "parse_bytes": "labkit.memory.units",
    "plan": "labkit.memory.planning",
    "plan_checkpointing": "labkit.memory.placement",
    "predict": "labkit.memory.prediction",
    "predict_build": "labkit.memory.prediction",
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
