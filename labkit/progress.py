"""One progress bar for every loop: tqdm, silent when `LABKIT_PROGRESS=0` (stored notebook outputs, tests)."""

import os
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress(iterable: Iterable[Any] | None = None, *, total: int | None = None, label: str = "") -> "tqdm[Any]":
    """A bar over `iterable` (or a manual one of `total` steps) that removes itself when done."""
    disabled = os.environ.get("LABKIT_PROGRESS", "1") == "0"
    return tqdm(iterable, total=total, desc=label, leave=False, disable=disabled)
