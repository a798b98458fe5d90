"""The scalar codec: laws that any format obeys, the published cases, and refusals."""

import csv
import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.numbers import ALIASES, FORMATS, OVERFLOWS, ROUNDINGS, FloatFormat, as_format, binary, vectors
from labkit.numbers.parse import exact

DATA = Path(__file__).parent / "data"
SMALL = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]
fast = settings(deadline=None, max_examples=40)


@st.composite
def formats(draw: st.DrawFn) -> FloatFormat:
    """Any format that can exist, wide and narrow, with an odd bias now and then."""
    specials = draw(st.sampled_from(["ieee", "fn", "fnuz", "finite"]))
    signed = draw(st.booleans()) or specials == "fnuz"
    exponent_bits = draw(st.integers(1 if specials == "ieee" else 0, 9))
    fraction_bits = draw(st.integers(1 if specials == "ieee" else 0, 20))
    bias = draw(st.none() | st.integers(-70, 300))
    try:
        return FloatFormat("custom", exponent_bits, fraction_bits, bias=bias, specials=specials, signed=signed)
    except ValueError:
        return draw(st.sampled_from(list(FORMATS.values())))


def is_number(fmt: FloatFormat, code: int) -> bool:
    return fmt.fields(code).significand is not None


@st.composite
def format_and_number(draw: st.DrawFn) -> tuple[FloatFormat, int]:
    fmt = draw(formats())
    code = draw(st.integers(0, (1 << fmt.bits) - 1).filter(lambda code: is_number(fmt, code)))
    return fmt, code


def between(fmt: FloatFormat, code: int, parts: Fraction) -> Fraction:
    """The value of `code` and so many ulps more."""
    return fmt.decode_exact(code) + fmt.ulp(code) * parts


fractions_of_ulp = st.fractions(-1, 1, max_denominator=64)


# --- laws -----------------------------------------------------------------------------------------------------------


@fast
@given(format_and_number(), st.sampled_from(ROUNDINGS), st.sampled_from(OVERFLOWS), st.floats(0, 1, exclude_max=True))
def test_encode_undoes_decode(case: tuple[FloatFormat, int], rounding, overflow, draw) -> None:
    fmt, code = case
    if fmt.fields(code).kind == "zero" and code:
        assert fmt.encode(fmt.decode(code), rounding=rounding, overflow=overflow, draw=draw) == code
    else:
        assert fmt.encode(fmt.decode_exact(code), rounding=rounding, overflow=overflow, draw=draw) == code


@fast
@given(format_and_number(), fractions_of_ulp, fractions_of_ulp, st.sampled_from(ROUNDINGS), st.floats(0, 0.99))
def test_encode_is_monotone(case, first, second, rounding, draw) -> None:
    fmt, code = case
    low, high = sorted([between(fmt, code, first), between(fmt, code, second)])
    if low < 0 and not fmt.signed:
        return
    keys = [fmt.order_key(fmt.encode(x, rounding=rounding, overflow="saturate", draw=draw)) for x in (low, high)]
    if rounding == "stochastic" and low < 0:
        return  # with one draw, two negative values round the same way, but away from zero
    assert keys[0] <= keys[1]


@fast
@given(format_and_number(), fractions_of_ulp, st.sampled_from(["nearest_even", "nearest_away"]))
def test_nearest_is_nearest(case, parts, rounding) -> None:
    fmt, code = case
    x = between(fmt, code, parts)
    if x < 0 and not fmt.signed:
        return
    got = fmt.encode(x, rounding=rounding, overflow="saturate")
    best = abs(fmt.decode_exact(got) - x)
    for neighbour in (fmt.next_up(got), fmt.next_down(got)):
        if is_number(fmt, neighbour):
            assert best <= abs(fmt.decode_exact(neighbour) - x)


@fast
@given(format_and_number(), fractions_of_ulp)
def test_directed_roundings_enclose_the_value(case, parts) -> None:
    fmt, code = case
    x = between(fmt, code, parts)
    low, high = (fmt.encode(x, rounding=rounding) for rounding in ("down", "up"))
    if not (is_number(fmt, low) and is_number(fmt, high)):
        return
    if fmt.is_scale and x < fmt.decode_exact(0):
        return  # a scale format has no value below its smallest
    if abs(x) > fmt.decode_exact(fmt.max_code):
        return  # "finite" formats saturate
    assert fmt.decode_exact(low) <= x <= fmt.decode_exact(high)
    between_them = fmt.order_key(high) - fmt.order_key(low)
    assert between_them <= 1 + (fmt.decode_exact(low) < 0 <= fmt.decode_exact(high))
    toward_zero = fmt.encode(x, rounding="toward_zero")
    assert fmt.decode_exact(toward_zero) == fmt.decode_exact(low if x >= 0 else high)


@fast
@given(format_and_number(), fractions_of_ulp, st.sampled_from(ROUNDINGS), st.floats(0, 0.99))
def test_encode_is_symmetric(case, parts, rounding, draw) -> None:
    fmt, code = case
    if not fmt.signed:
        return
    mirror = {"up": "down", "down": "up"}.get(rounding, rounding)
    x = between(fmt, code, parts)
    codes = fmt.encode(x, rounding=rounding, draw=draw), fmt.encode(-x, rounding=mirror, draw=draw)
    values = [fmt.decode_exact(code) if is_number(fmt, code) else fmt.fields(code).kind for code in codes]
    assert values[0] == (-values[1] if isinstance(values[1], Fraction) else values[1])


@fast
@given(formats(), st.data())
def test_order_key_sorts_as_the_values_do(fmt: FloatFormat, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, (1 << fmt.bits) - 1).filter(lambda c: is_number(fmt, c)), max_size=20))
    by_key = sorted(codes, key=fmt.order_key)
    values = [fmt.decode_exact(code) for code in by_key]
    assert values == sorted(values)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_order_key_is_a_permutation_of_the_codes(fmt: FloatFormat) -> None:
    if fmt.bits == 16:
        codes = [*range(0, 1 << 16, 17), 0x7FFF, 0x8000, 0xFFFF]
        assert len({fmt.order_key(code) for code in codes}) == len(set(codes))
    else:
        assert sorted(fmt.order_key(code) for code in range(1 << fmt.bits)) == list(range(1 << fmt.bits))


@fast
@given(format_and_number())
def test_next_up_and_next_down_undo_each_other_and_skip_nothing(case) -> None:
    fmt, code = case
    above = fmt.next_up(code)
    if above == code or not is_number(fmt, above):
        return
    value, larger = fmt.decode_exact(code), fmt.decode_exact(above)
    if fmt.fields(code).kind == "zero":
        assert larger == fmt.decode_exact(0 if fmt.is_scale else 1)
        return
    assert value < larger or fmt.fields(above).kind == "zero"
    assert fmt.encode((value + larger) / 2, rounding="down") in (code, above)
    if fmt.fields(above).kind != "zero":
        assert fmt.next_down(above) == code
    assert larger - value in (fmt.ulp(code), fmt.ulp(above), 0)


def test_next_up_at_the_ends() -> None:
    fp16, e4m3, fnuz, e8m0 = (FORMATS[name] for name in ("fp16", "fp8_e4m3fn", "fp8_e4m3fnuz", "e8m0"))
    assert fp16.next_up(0x7BFF) == 0x7C00 and fp16.next_up(0x7C00) == 0x7C00
    assert fp16.next_up(0xFC00) == 0xFBFF and fp16.next_down(0xFC00) == 0xFC00
    assert fp16.next_up(0x8000) == fp16.next_up(0x0000) == 0x0001
    assert fp16.next_up(0x8001) == 0x8000 and fp16.next_down(0x0001) == 0x0000
    assert fp16.next_down(0x0000) == fp16.next_down(0x8000) == 0x8001
    assert fp16.next_up(0x7E00) == 0x7E00 and fp16.next_down(0xFE00) == 0xFE00
    assert e4m3.next_up(0x7E) == 0x7E and e4m3.next_down(0xFE) == 0xFE
    assert fnuz.next_up(0x81) == 0x00 and fnuz.next_down(0x01) == 0x00 and fnuz.next_down(0x00) == 0x81
    assert fnuz.next_up(0x80) == fnuz.next_down(0x80) == 0x80
    assert e8m0.next_down(0x00) == 0x00 and e8m0.next_up(0xFE) == 0xFE and e8m0.next_down(0xFF) == 0xFF


@fast
@given(format_and_number())
def test_the_exact_decimal_reads_back(case) -> None:
    fmt, code = case
    text = fmt.decimal(code)
    assert re.fullmatch(r"-?\d+(\.\d*[1-9])?", text)
    assert Fraction(text) == fmt.decode_exact(code)
    assert fmt.encode(text) == code


@fast
@given(format_and_number())
def test_fields_rebuild_the_value(case) -> None:
    fmt, code = case
    parts = fmt.fields(code)
    hidden = int(parts.kind == "normal")
    significand = hidden + Fraction(parts.fraction, 1 << fmt.fraction_bits)
    assert parts.significand == significand
    assert fmt.decode_exact(code) == (-1) ** parts.sign * significand * Fraction(2) ** parts.true_exponent
    if parts.kind == "normal" and not fmt.is_scale:
        assert parts.true_exponent == parts.exponent - fmt.bias


@settings(deadline=None, max_examples=200)
@given(st.floats(), st.sampled_from(["fp64", "fp32"]))
def test_fp64_and_fp32_are_the_machine_s_own(x: float, name: str) -> None:
    fmt = FORMATS[name]
    with np.errstate(over="ignore"):
        machine = (np.float64 if name == "fp64" else np.float32)(x)
    code = fmt.encode(x)
    if math.isnan(x):
        assert fmt.fields(code).kind == "quiet NaN"
        return
    assert code == int(machine.view(np.uint64 if name == "fp64" else np.uint32))
    assert fmt.decode(code) == machine and math.copysign(1, fmt.decode(code)) == math.copysign(1, x)


@settings(deadline=None, max_examples=100)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=None))
def test_decimal_text_is_read_as_python_reads_it(value: Decimal) -> None:
    code = FORMATS["fp64"].encode(str(value))
    assert code == FORMATS["fp64"].encode(value)
    assert FORMATS["fp64"].decode(code) == float(value)  # float() rounds decimal text once, to nearest even


@settings(deadline=None, max_examples=100)
@given(st.floats(allow_nan=False))
def test_hex_text_is_read_as_python_writes_it(x: float) -> None:
    assert FORMATS["fp64"].encode(x.hex()) == FORMATS["fp64"].encode(x)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.001, 0.999), st.integers(0, 200))
def test_stochastic_rounding_goes_up_as_often_as_the_part_says(part: float, seed: int) -> None:
    fmt = FORMATS["fp8_e5m2"]
    x = Fraction(1) + Fraction(part) / 4  # between 1 and 1.25
    draws = (np.arange(1000) + np.random.default_rng(seed).random()) / 1000
    ups = sum(fmt.encode(x, rounding="stochastic", draw=float(draw)) - fmt.encode(1) for draw in draws)
    assert abs(ups / 1000 - part) <= 0.0011


# --- published cases ------------------------------------------------------------------------------------------------


def case_value(text: str) -> Fraction | str:
    """The `input` of a case: plain text for the parser, or a formula in powers of two."""
    if "^" not in text:
        return text
    powers = re.sub(r"2\^(-?\d+)", r"Fraction(2)**(\1)", text)
    assert re.fullmatch(r"(Fraction\(2\)\*\*\(-?\d+\)|0x[0-9A-F]+|[\d()+*-])+", powers), text
    return eval(powers, {"Fraction": Fraction})  # only powers of two, hex integers and arithmetic, as just checked


with (DATA / "formats_cases.csv").open(encoding="utf-8", newline="") as file:
    CASES = list(csv.DictReader(file))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['input']}-{case['target']}-{case['overflow']}")
def test_published_case(case: dict[str, str]) -> None:
    fmt = FORMATS[case["target"]]
    if case["source"] == "finfo":
        assert case["input"] == "eps" and fmt.eps == float(case["expected_value"])
        return
    if case["source"] == "code":
        code = int(case["input"].removeprefix("decode "), 16)
    else:
        value = case_value(case["input"])
        # A case that comes from a float starts from that float's exact value, not from the text.
        if case["source"] in ("fp64", "fp32") and isinstance(value, str):
            value = float(value) if case["source"] == "fp64" else np.float32(value)
        code = fmt.encode(value, rounding=case["rounding"], overflow=case["overflow"])
    if case["expected_code"]:
        assert code == int(case["expected_code"], 16)
    if case["expected_value"] == "nan":
        assert math.isnan(fmt.decode(code))
    elif case["expected_value"]:
        expected = case_value(case["expected_value"])
        assert fmt.decode(code) == (float(expected) if isinstance(expected, str) else expected)


def test_every_case_is_told_apart() -> None:
    assert len(CASES) == 35


STORED = json.loads((DATA / "codec_vectors.json").read_text(encoding="utf-8"))


def test_the_vectors_in_the_repository_are_the_generator_s() -> None:
    made = vectors.document()
    assert STORED["formats"] == made["formats"]
    assert STORED["vectors"] == made["vectors"], "run: python -m labkit.numbers.vectors tests/data/codec_vectors.json"


def test_the_vectors_hold_every_published_case_that_is_plain_text() -> None:
    inputs = {(vector["format"], vector.get("input")) for vector in STORED["vectors"]}
    texts = [(case["target"], case["input"]) for case in CASES if case["source"] not in ("code", "finfo", "exact")]
    assert not [text for text in texts if text not in inputs]


# --- NaN, zero, overflow: the policy in words --------------------------------------------------------------------------


def test_nan_keeps_its_sign_and_loses_its_payload() -> None:
    assert FORMATS["fp16"].encode("-nan") == 0xFE00 and FORMATS["fp16"].encode(math.nan) == 0x7E00
    signalling = FORMATS["fp32"].fields(0x7F800001)
    assert (signalling.kind, signalling.payload) == ("signalling NaN", 1)
    quiet = FORMATS["fp32"].fields(0xFFC00123)
    assert (quiet.kind, quiet.payload, quiet.sign) == ("quiet NaN", 0x123, 1)
    assert FORMATS["fp8_e4m3fn"].encode("-nan") == 0xFF and FORMATS["fp8_e4m3fnuz"].encode("-nan") == 0x80
    assert FORMATS["e8m0"].encode("nan") == 0xFF
    assert math.copysign(1, FORMATS["bf16"].decode(0xFFC0)) == -1
    assert FORMATS["fp16"].decimal(0xFE00) == "-nan" and FORMATS["fp8_e5m2fnuz"].decimal(0x80) == "nan"


@pytest.mark.parametrize("name", ["fp6_e3m2", "fp6_e2m3", "fp4_e2m1"])
def test_a_format_without_nan_says_so(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no NaN"):
        FORMATS[name].encode("nan")
    assert FORMATS[name].encode("inf") == FORMATS[name].encode(1e9) == FORMATS[name].max_code


@pytest.mark.parametrize(
    ("rounding", "sign", "code"),
    [
        ("nearest_even", 1, 0x7C00),
        ("nearest_away", -1, 0xFC00),
        ("toward_zero", 1, 0x7BFF),
        ("toward_zero", -1, 0xFBFF),
        ("up", 1, 0x7C00),
        ("up", -1, 0xFBFF),
        ("down", 1, 0x7BFF),
        ("down", -1, 0xFC00),
        ("stochastic", 1, 0x7C00),
    ],
)
def test_overflow_follows_the_rounding(rounding, sign: int, code: int) -> None:
    fp16 = FORMATS["fp16"]
    assert fp16.encode(sign * 10**9, rounding=rounding, draw=0.9) == code
    assert fp16.encode(sign * 10**9, rounding=rounding, draw=0.9, overflow="saturate") & 0x7FFF == 0x7BFF
    assert fp16.encode(sign * math.inf, rounding=rounding, draw=0.9) & 0x7FFF == 0x7C00
    assert fp16.encode(sign * math.inf, rounding=rounding, draw=0.9, overflow="saturate") & 0x7FFF == 0x7BFF


def test_unsigned_formats_refuse_the_negative() -> None:
    e8m0 = FORMATS["e8m0"]
    assert e8m0.encode(-1) == 0xFF and e8m0.encode(-1, overflow="saturate") == 0x00
    assert e8m0.encode("-0") == e8m0.encode(0) == e8m0.encode("1e-99") == 0x00
    ue4m3 = FloatFormat("ue4m3", 4, 3, specials="fn", signed=False)
    assert ue4m3.encode("-1e-9") == 0 and ue4m3.encode(-1) == ue4m3.nan_code and ue4m3.encode("-inf") == ue4m3.nan_code


@pytest.mark.parametrize("text", ["1e999999999", "0x1p999999999", "1e" + "9" * 5000, "9" * 90_000 + "e-10", "1" + "0" * 70_000])
def test_a_huge_exponent_overflows_and_its_inverse_underflows(text: str) -> None:
    fp64 = FORMATS["fp64"]
    assert fp64.encode(text) == fp64.infinity_code
    assert fp64.encode("-" + text, overflow="saturate") == fp64.max_code | fp64.sign_mask
    if "e9" in text or "p9" in text:
        tiny = text.replace("e9", "e-9").replace("p9", "p-9")
        assert fp64.encode(tiny) == 0
        assert fp64.encode(tiny, rounding="up") == 1
        assert fp64.encode("-" + tiny, rounding="up") == fp64.sign_mask


def test_an_exponent_and_many_digits_can_cancel() -> None:
    assert FORMATS["fp64"].encode("0." + "0" * 80_000 + "1e80001") == FORMATS["fp64"].encode(1)
    assert FORMATS["fp64"].encode("1" + "0" * 80_000 + "e-80000") == FORMATS["fp64"].encode(1)
    assert FORMATS["fp32"].encode("1." + "0" * 50_000 + "1", rounding="up") == FORMATS["fp32"].encode(1) + 1


def test_the_widest_format_there_is() -> None:
    quad = FloatFormat("fp128", 15, 112)
    assert quad.bits == 128 and quad.encode(1) == 0x3FFF << 112
    third = quad.decode_exact(quad.encode(Fraction(1, 3)))
    assert abs(third - Fraction(1, 3)) < Fraction(1, 2**114)
    assert len(quad.decimal(1)) == 16_496 and quad.encode(quad.decimal(1)) == 1
    with pytest.raises(ValueError, match="not exactly a float; use decode_exact"):
        _ = quad.max


# --- names and refusals -----------------------------------------------------------------------------------------------


def test_as_format_takes_names_and_dtypes() -> None:
    import ml_dtypes
    import torch

    assert as_format("bfloat16") is as_format(torch.bfloat16) is as_format(ml_dtypes.bfloat16) is FORMATS["bf16"]
    assert as_format(np.dtype("float16")) is as_format(np.float16) is as_format("FP16") is FORMATS["fp16"]
    assert as_format(torch.float8_e8m0fnu) is FORMATS["e8m0"]
    assert as_format(FORMATS["tf32"]) is FORMATS["tf32"]
    assert set(ALIASES.values()) <= set(FORMATS)
    with pytest.raises(ValueError, match="'fp12' is unknown; there are: fp64, fp32"):
        as_format("fp12")


@pytest.mark.parametrize("text", vectors.REFUSED)
def test_text_that_is_no_number_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number; write a decimal") as error:
        FORMATS["fp16"].encode(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("value", [True, None, 1 + 2j, b"1", [1]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="is not a number: pass an int, float, Fraction, Decimal or text"):
        exact(value)


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="100001 characters; at most 100000"):
        exact("1" * 100_001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exponent_bits": 16, "fraction_bits": 3}, "exponent_bits goes from 0 to 15, not 16"),
        ({"exponent_bits": -1, "fraction_bits": 3}, "exponent_bits goes from 0 to 15, not -1"),
        ({"exponent_bits": 5, "fraction_bits": 113}, "fraction_bits goes from 0 to 112, not 113"),
        ({"exponent_bits": 5, "fraction_bits": 2, "bias": 10**6}, "bias goes from -32768 to 32768"),
        ({"exponent_bits": 5, "fraction_bits": 0}, "'ieee' needs an exponent bit and a fraction bit"),
        ({"exponent_bits": 5, "fraction_bits": 2, "specials": "ocp"}, "specials 'ocp' is unknown; there are: ieee, fn"),
        ({"exponent_bits": 5, "fraction_bits": 2, "specials": "fnuz", "signed": False}, "needs a sign bit"),
        ({"exponent_bits": 1, "fraction_bits": 0, "specials": "fn"}, "would hold no number but zero"),
        ({"exponent_bits": 0, "fraction_bits": 0, "specials": "finite"}, "would hold no number but zero"),
    ],
)
def test_a_format_that_cannot_exist_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FloatFormat("bad", **options)


def test_widths_that_are_no_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="exponent_bits is an int from 0 to 15, not 5.0"):
        FloatFormat("bad", 5.0, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [-1, 1 << 16])
def test_a_code_out_of_range_is_refused(code: int) -> None:
    for verb in ("decode", "fields", "ulp", "next_up", "next_down", "order_key", "decimal", "decode_exact"):
        with pytest.raises(ValueError, match="is not a fp16 code: those go from 0 to 0xffff"):
            getattr(FORMATS["fp16"], verb)(code)


def test_a_code_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="a code is an int from 0 to 0xffff, not 1.0"):
        FORMATS["fp16"].decode(1.0)  # type: ignore[arg-type]


def test_unknown_modes_are_refused() -> None:
    fp16 = FORMATS["fp16"]
    with pytest.raises(ValueError, match="rounding 'even' is unknown; there are: nearest_even"):
        fp16.encode(1, rounding="even")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overflow 'clamp' is unknown; there are: ieee, saturate"):
        fp16.encode(1, overflow="clamp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stochastic rounding needs draw="):
        fp16.encode(1, rounding="stochastic")
    with pytest.raises(ValueError, match="draw goes from 0 up to but not including 1, not 1.0"):
        fp16.encode(1, rounding="stochastic", draw=1.0)


def test_what_has_no_value_has_no_fraction_and_no_ulp() -> None:
    with pytest.raises(ValueError, match="0x7c00 is infinity, which no fraction equals"):
        FORMATS["fp16"].decode_exact(0x7C00)
    with pytest.raises(ValueError, match="0x7e00 is quiet NaN, which has no ulp"):
        FORMATS["fp16"].ulp(0x7E00)


def test_values_lists_small_formats_only() -> None:
    fp4 = [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert list(FORMATS["fp4_e2m1"].values()) == fp4
    assert len(list(FORMATS["e8m0"].values())) == 255
    with pytest.raises(ValueError, match="fp32 has 2\\^32 codes, too many to list"):
        list(FORMATS["fp32"].values())


def test_bits_are_grouped() -> None:
    assert binary(FORMATS["fp16"], 0x3C01) == "0 01111 0000000001"
    assert binary(FORMATS["e8m0"], 0x80) == "10000000"
    assert binary(FloatFormat("fixed", 0, 3, specials="finite"), 0b1011) == "1 011"
