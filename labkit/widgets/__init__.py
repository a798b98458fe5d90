"""Interactive pictures for notebooks: they draw what numbers, memory and techniques compute."""

from importlib import import_module
from typing import Any

_LAZY = {
    "BitViewer": "labkit.widgets.bit_viewer",
    "CheckpointGame": "labkit.widgets.checkpoint_game",
    "LossScaleExplorer": "labkit.widgets.loss_scale_explorer",
    "NumberLine": "labkit.widgets.number_line",
    "Planner": "labkit.widgets.planner",
    "RangeExplorer": "labkit.widgets.range_explorer",
    "UpdateExplorer": "labkit.widgets.update_explorer",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    """Load a widget when it is first asked for, so that a notebook pays only for what it shows."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'labkit.widgets' has no attribute {name!r}")
