"""Formats and exact codecs. Standard library only; `tensors` and `blocks` alone need torch."""

from labkit.numbers.formats import ALIASES, FORMATS, OVERFLOWS, ROUNDINGS, Fields, FloatFormat, as_format
from labkit.numbers.text import binary, decimal

__all__ = [
    "ALIASES",
    "FORMATS",
    "OVERFLOWS",
    "ROUNDINGS",
    "Fields",
    "FloatFormat",
    "as_format",
    "binary",
    "decimal",
]
