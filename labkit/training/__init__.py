"""The small transformer of the course and its training. Read it in this order: `model`, `data`, `course`, `loop`."""

from labkit.training.course import adamw, workload
from labkit.training.loop import RunResult, TrainConfig, train
from labkit.training.model import PRESETS, ModelConfig, Transformer, preset

__all__ = ["PRESETS", "ModelConfig", "RunResult", "TrainConfig", "Transformer", "adamw", "preset", "train", "workload"]
