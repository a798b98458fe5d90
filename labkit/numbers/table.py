"""The formats side by side: a table, and range against precision as a picture."""

import math
from collections.abc import Iterable
from typing import Any

from labkit.numbers.formats import FORMATS, FloatFormat, as_format


def format_table(formats: Iterable[Any] = tuple(FORMATS)) -> Any:
    """A pandas DataFrame of `formats`, a row each, indexed by name.

    Columns: the widths in bits, bias, largest number, smallest normal and smallest positive number, eps, decimal digits
    (floor(fraction_bits * log10 2): every decimal of that many digits survives the trip in and out), and what the special codes
    are.
    """
    import pandas as pd

    rows = [_row(as_format(fmt)) for fmt in formats]
    return pd.DataFrame(rows).set_index("format")


def _row(fmt: FloatFormat) -> dict[str, Any]:
    return {
        "format": fmt.name,
        "bits": fmt.bits,
        "sign": int(fmt.signed),
        "exponent": fmt.exponent_bits,
        "fraction": fmt.fraction_bits,
        "bias": fmt.bias,
        "largest": fmt.max,
        "smallest normal": fmt.smallest_normal,
        "smallest positive": fmt.smallest_subnormal,
        "eps": fmt.eps,
        "decimal digits": math.floor(fmt.fraction_bits * math.log10(2)),
        "infinity": fmt.has_infinity,
        "NaN": fmt.has_nan,
        "negative zero": fmt.has_negative_zero,
    }


def binades(fmt: Any) -> tuple[int, int, int]:
    """Exponents of two of the smallest positive, the smallest normal and the largest number of `fmt`."""
    fmt = as_format(fmt)
    return (
        math.frexp(fmt.smallest_subnormal)[1] - 1,
        math.frexp(fmt.smallest_normal)[1] - 1,
        math.frexp(fmt.max)[1] - 1,
    )
