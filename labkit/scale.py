"""How large the lessons run: `ci` (minutes for the whole course), `laptop` (at most a minute a cell) or `gpu`.

`LABKIT_SCALE` chooses; without it a machine with a CUDA device runs at `gpu`, any other at `laptop`.
"""

import os
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

NAMES = ("ci", "laptop", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of one scale for training runs: preset, optimizer steps, batch size and seeds."""

    name: str
    preset: str
    steps: int
    batch_size: int
    seeds: int


SCALES = {
    "ci": Scale(name="ci", preset="tiny", steps=12, batch_size=8, seeds=1),
    "laptop": Scale(name="laptop", preset="tiny", steps=120, batch_size=8, seeds=3),
    "gpu": Scale(name="gpu", preset="small", steps=500, batch_size=32, seeds=3),
}


def as_scale(name: str) -> Scale:
    """The scale called `name`; ValueError names the ones that exist."""
    if name not in SCALES:
        raise ValueError(f"scale {name!r} is unknown; choose one of {', '.join(NAMES)}")
    return SCALES[name]


def current() -> Scale:
    """The scale of this process: `LABKIT_SCALE`, else `gpu` where CUDA is available, else `laptop`."""
    name = os.environ.get("LABKIT_SCALE")
    if name is None:
        import torch

        name = "gpu" if torch.cuda.is_available() else "laptop"
    return as_scale(name)


def pick(*, ci: T, laptop: T, gpu: T | None = None) -> T:
    """The value for the current scale; `gpu` falls back to the laptop's value."""
    name = current().name
    if name == "ci":
        return ci
    return gpu if name == "gpu" and gpu is not None else laptop
