"""Write the test vectors that hold the Python and the JavaScript codec together.

Run from the repository's root: `python -m labkit.numbers.vectors tests/data/codec_vectors.json`. The answers come from the
Python codec, which its own tests hold to ml_dtypes, numpy, torch, gfloat and the published cases.

The file is one JSON object::

    {"formats": {NAME: {"exponent_bits", "fraction_bits", "bias", "specials", "signed"}}, "vectors": [...]}

A vector has "format" (a NAME), "op", and:

- "encode": "input" (text, what a user may type), "rounding", "overflow", "draw" (text, only for stochastic) -> "code".
- "decode": "code" -> "value", the exact decimal without an exponent ("0.0999755859375", "-0", "inf", "-inf", "nan", "-nan").
- "fields": "code" -> "sign", "exponent", "fraction", "kind", "payload" (null unless NaN), "true_exponent" (null for specials).
- "next_up", "next_down", "order_key": "code" -> "result", a code.
- "ulp": "code" -> "value", an exact decimal.

Codes and fields of any size are hex text ("0x3c00"): JSON numbers lose 64-bit codes. In place of its answer a vector may have
"error": true, where the call is refused.
"""

import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

from labkit.numbers.formats import FORMATS, OVERFLOWS, ROUNDINGS, FloatFormat
from labkit.numbers.text import decimal, fraction_text

Vector = dict[str, Any]

#: Formats beside the catalogue's: the longest there is, one with no exponent field, one with no fraction, an unsigned one with
#: zero, one with a bias far off, and the IEEE-like E4M3.
CUSTOM: tuple[FloatFormat, ...] = (
    FloatFormat("fp128", 15, 112),
    FloatFormat("fixed_m6", 0, 6, specials="finite"),
    FloatFormat("power_e4m0", 4, 0, specials="fn"),
    FloatFormat("ue4m3", 4, 3, specials="fn", signed=False),
    FloatFormat("far_e5m10", 5, 10, bias=-100),
    FloatFormat("fp8_e4m3", 4, 3),
)

#: Text that every format must read alike; the cases of tests/data/formats_cases.csv are among them.
TEXTS: tuple[str, ...] = (
    "0", "-0", "1", "-1", "0.1", "-0.1", "1e-5", "-1e-5", "3.14159265358979323846264338327950288", "257", "464", "465",
    "-465", "2051", "3811", "5", "1.125", "1.25", "1.5", "3", "1.0625001", "0.25", "0.25000006", "17568", "16973823", "65504",
    "65519.999", "65520", "-431.99999999999994", "6.6461399789245764e35", "1.7976931348623157e308", "2.980232238769532e-8",
    "1.000000059604644775390625", "1.000000059604644775390626", "0x1.8p-3", "0x1FFDFFFFFFp-26", "0x1.00001p-25", "0x1p-25",
    "0x.8p+1", "-0x1.fffffep127", "1e999999999", "-1e999999999", "1e-999999999", "-1e-99999999999999999999999999",
    "0e999999999", "0x1p999999999", "inf", "-inf", "infinity", "+inf", "nan", "-nan", " 1_000 ", ".5", "5.", "+1.5E+1",
    # 2^-14 - 2^-25 - 2^-65, beside the boundary of fp16's subnormals
    "0x1.ffbffffffffcp-15",
)  # fmt: skip

REFUSED: tuple[str, ...] = ("", "abc", "1.2.3", "0x", "1e", "--1", "1,5", "e5", "0x1.8q3", "\N{ARABIC-INDIC DIGIT ONE}")

DRAWS: tuple[str, ...] = ("0", "0.25", "0.5", "0.99999999999999988897769753748434595763683319091796875")


def vectors() -> Iterator[Vector]:
    """Every vector, in a fixed order."""
    for fmt in (*FORMATS.values(), *CUSTOM):
        codes = _corner_codes(fmt)
        for text, overflow in product((*TEXTS, *REFUSED), OVERFLOWS):
            yield _encode(fmt, text, "nearest_even", overflow)
        for text, (rounding, draw) in product(_texts_between(fmt, codes), _modes()):
            yield _encode(fmt, text, rounding, "ieee", draw)
        for text, (rounding, draw) in product(_texts_between(fmt, [fmt.max_code]), _modes()):
            yield _encode(fmt, text, rounding, "saturate", draw)
        for code in codes:
            yield from _about(fmt, code)
        yield {"format": fmt.name, "op": "decode", "code": hex(1 << fmt.bits), "error": True}


def _modes() -> list[tuple[str, str | None]]:
    plain: list[tuple[str, str | None]] = [(rounding, None) for rounding in ROUNDINGS if rounding != "stochastic"]
    return plain + [("stochastic", draw) for draw in DRAWS]


def _corner_codes(fmt: FloatFormat) -> list[int]:
    """Codes at every edge: zero, subnormal, normal, one, largest, specials; all codes of the smallest formats."""
    if fmt.bits <= 6:
        return list(range(1 << fmt.bits))
    hidden = 1 << fmt.fraction_bits
    edges = {0, 1, 2, hidden - 1, hidden, hidden + 1, fmt.encode(1), fmt.encode(1) + 1, fmt.max_code - 1, fmt.max_code}
    edges |= {fmt.max_code + 1, fmt.max_code + 2, fmt.magnitude_mask - 1, fmt.magnitude_mask}
    edges |= {fmt.nan_code if fmt.has_nan else 0, (fmt.magnitude_mask // 3) | 1}
    inside = sorted(code for code in edges if 0 <= code <= fmt.magnitude_mask)
    return inside + ([code | fmt.sign_mask for code in inside] if fmt.signed else [])


def _texts_between(fmt: FloatFormat, codes: list[int]) -> list[str]:
    """Texts at, between and beside the midpoints of neighbours, past the largest number and below the smallest."""
    texts: dict[str, None] = {}
    for code in codes[:: 1 if fmt.bits == 8 else 3]:
        if fmt.fields(code).significand is None:
            continue
        value, gap = fmt.decode_exact(code), fmt.ulp(code)
        for part in (Fraction(1, 4), Fraction(1, 2), Fraction(1, 2) + Fraction(1, 2**40)):
            away = value + (gap * part if value >= 0 else -gap * part)
            texts[_exact_text(away)] = None
    return list(texts)


def _exact_text(value: Fraction) -> str:
    """`value` in full: as a decimal where that is short, else as a hex float."""
    text = fraction_text(value)
    if len(text) <= 60:
        return text
    minus = "-" if value < 0 else ""
    return f"{minus}0x{abs(value.numerator):x}p-{value.denominator.bit_length() - 1}"


def _encode(fmt: FloatFormat, text: str, rounding: Any, overflow: Any, draw: str | None = None) -> Vector:
    vector: Vector = {"format": fmt.name, "op": "encode", "input": text, "rounding": rounding, "overflow": overflow}
    if draw is not None:
        vector["draw"] = draw
    try:
        code = fmt.encode(text, rounding=rounding, overflow=overflow, draw=None if draw is None else float(draw))
    except ValueError:
        return vector | {"error": True}
    return vector | {"code": hex(code)}


def _about(fmt: FloatFormat, code: int) -> Iterator[Vector]:
    base = {"format": fmt.name, "code": hex(code)}
    parts = fmt.fields(code)
    yield base | {"op": "decode", "value": decimal(fmt, code)}
    yield base | {
        "op": "fields",
        "sign": parts.sign,
        "exponent": hex(parts.exponent),
        "fraction": hex(parts.fraction),
        "kind": parts.kind,
        "payload": None if parts.payload is None else hex(parts.payload),
        "true_exponent": parts.true_exponent,
    }
    yield base | {"op": "next_up", "result": hex(fmt.next_up(code))}
    yield base | {"op": "next_down", "result": hex(fmt.next_down(code))}
    yield base | {"op": "order_key", "result": hex(fmt.order_key(code))}
    if parts.significand is None:
        yield base | {"op": "ulp", "error": True}
    else:
        yield base | {"op": "ulp", "value": fraction_text(fmt.ulp(code))}


def document() -> dict[str, Any]:
    """The whole file, as JSON types."""
    formats = {
        fmt.name: {
            "exponent_bits": fmt.exponent_bits,
            "fraction_bits": fmt.fraction_bits,
            "bias": fmt.bias,
            "specials": fmt.specials,
            "signed": fmt.signed,
        }
        for fmt in (*FORMATS.values(), *CUSTOM)
    }
    return {"formats": formats, "vectors": list(vectors())}


def write(path: Path) -> None:
    """Write the file, a vector a line."""
    content = document()
    lines = ",\n".join(json.dumps(vector, separators=(",", ":")) for vector in content["vectors"])
    path.write_text(f'{{"formats": {json.dumps(content["formats"])},\n"vectors": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
