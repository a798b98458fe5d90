"""A run on disk: written whole or not at all, read without running any code in it.

Not to be confused with activation checkpointing, which is `labkit.techniques.checkpointing`.
"""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

#: Marks a file as ours; the number changes when what is in the file changes.
FORMAT = "labkit.training checkpoint 1"


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the file at `path` by `state`, so that at every moment it is the old file or the new one, whole.

    `state` holds tensors, numbers, text and lists and dicts of these.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            torch.save(state | {"format": FORMAT}, file)
            file.flush()
            # Without this a power cut could leave the new name on a file whose contents never reached the disk.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The state saved at `path`, its tensors on the CPU.

    Raises FileNotFoundError when there is no such file and ValueError when it is not a whole checkpoint of this module.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path} to resume from")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:
            # torch writes a CRC of every record and does not look at it again.
            damaged = archive.testzip() is not None
    # What the readers raise depends on where the damage is: RuntimeError, EOFError, UnpicklingError, BadZipFile and more.
    except Exception as error:
        raise ValueError(f"{path} is damaged or is not a checkpoint; it cannot be resumed from") from error
    if damaged:
        raise ValueError(f"{path} is damaged; it cannot be resumed from")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by this version of labkit.training; it cannot be resumed from")
    return state
