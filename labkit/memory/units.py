"""Sizes in words: "11.5 GiB" to bytes and back, with the unit always stated.

MB and GB are powers of ten, MiB and GiB powers of two; they differ by 5 and 7 %, so a bare "12G" is refused.
"""

import math
import re
from collections.abc import Iterable
from fractions import Fraction

#: Bytes in one of each unit, by SI (kB, MB, …) and IEC 80000-13 (KiB, MiB, …).
UNITS: dict[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB")
_SIZE = re.compile(r"\s*(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_ALLOWED = ", ".join(UNITS)


def parse_bytes(size: str | int | float) -> int:
    """The bytes in `size`: text such as "12 GB", "11.5GiB" or "512 MiB", or a whole number of bytes.

    A fraction of a byte is dropped, since a limit must not be exceeded. Raises ValueError where the text has no number,
    no unit or an unknown one, or the size is negative; TypeError where `size` is neither text nor a number.
    """
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise TypeError(f'a size is text such as "12 GB" or a whole number of bytes, not {size!r}')
    if isinstance(size, str):
        return _parse_text(size)
    if not math.isfinite(size) or size != int(size):
        raise ValueError(f"a size given as a number is a whole number of bytes, not {size!r}")
    if size < 0:
        raise ValueError(f"a size cannot be negative: {size!r}")
    return int(size)


def _parse_text(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'size {text!r} is not a number and a unit, such as "12 GB"; units: {_ALLOWED}')
    number, unit = match["number"], match["unit"]
    if unit not in UNITS:
        raise ValueError(f"size {text!r} has {_complaint(unit)}; units: {_ALLOWED}")
    if number.startswith("-"):
        raise ValueError(f"a size cannot be negative: {text!r}")
    return int(Fraction(number) * UNITS[unit])


def _complaint(unit: str) -> str:
    if not unit:
        return "no unit"
    if unit in ("k", "K", "M", "G", "T"):
        return f"the unit {unit!r}, which may mean {unit}B or {unit.upper()}iB"
    close = [name for name in UNITS if name.lower() == unit.lower()]
    return f"the unknown unit {unit!r}" + (f" (did you mean {close[0]}?)" if close else "")


def in_unit(n_bytes: float, unit: str) -> float:
    """`n_bytes` counted in `unit`; ValueError where the unit is unknown."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; units: {_ALLOWED}")
    return n_bytes / UNITS[unit]


def best_unit(sizes: float | Iterable[float], *, binary: bool = True) -> str:
    """The largest unit in which the largest of `sizes` (bytes) is at least 1: the one unit for a whole table or axis."""
    largest = max(map(abs, sizes), default=0) if isinstance(sizes, Iterable) else abs(sizes)
    names = _BINARY if binary else _DECIMAL
    return next((name for name in reversed(names) if largest >= UNITS[name]), "B")


def format_bytes(n_bytes: float, unit: str | None = None, *, digits: int | None = None, binary: bool = True) -> str:
    """`n_bytes` as text with its unit, such as "11.50 GiB"; the best unit of its family where none is given.

    `digits` after the point: 2 by default, none for bytes. Thousands are set apart with commas.
    """
    unit = unit or best_unit(n_bytes, binary=binary)
    if digits is None:
        digits = 0 if unit == "B" else 2
    return f"{in_unit(n_bytes, unit):,.{digits}f} {unit}"
