"""Probes: see in the numbers what a precision setting does to anyone's model.

Each is one function; the object it gives has the numbers as attributes, a `table()` and a `plot()`.
"""

from labkit.techniques.probes.autocast import AutocastLog, autocast_lists, autocast_log
from labkit.techniques.probes.gaps import LossGaps, loss_gaps
from labkit.techniques.probes.histogram import GradientHistogram, Shares, gradient_histogram
from labkit.techniques.probes.nonfinite import FirstNonfinite, Nonfinite, first_nonfinite
from labkit.techniques.probes.scaler import ScalerEvent, ScalerTimeline, scaler_timeline
from labkit.techniques.probes.survival import UpdateSurvival, update_survival

__all__ = [
    "AutocastLog",
    "FirstNonfinite",
    "GradientHistogram",
    "LossGaps",
    "Nonfinite",
    "ScalerEvent",
    "ScalerTimeline",
    "Shares",
    "UpdateSurvival",
    "autocast_lists",
    "autocast_log",
    "first_nonfinite",
    "gradient_histogram",
    "loss_gaps",
    "scaler_timeline",
    "update_survival",
]
