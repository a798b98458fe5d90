"""BitViewer from Python: traits, validation, two-way links, live tensors, the repr and the shared state."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.numbers import FORMATS, FloatFormat
from labkit.widgets import BitViewer
from labkit.widgets.source import read_number, read_source, write_source


def test_codes_and_value_follow_the_source() -> None:
    viewer = BitViewer("0.1", formats=("fp64", torch.float16, FloatFormat("mine", 4, 3)))
    assert viewer.codes == {"fp64": "0x3FB999999999999A", "fp16": "0x2E66", "mine": "0x1D"}
    assert viewer.value == 0.1
    viewer.value = 1
    assert (viewer.source, viewer.codes["fp16"]) == ("1", "0x3C00")
    viewer.source = "fp16:0x7BFF"
    assert (viewer.value, viewer.codes["fp64"]) == (65504.0, "0x40EFFC0000000000")


@pytest.mark.parametrize(
    ("given_value", "source", "nearest"),
    [
        (0.1, "0.1000000000000000055511151231257827021181583404541015625", 0.1),
        (0.5, "0.5", 0.5),
        (1e-300, (1e-300).hex(), 1e-300),
        (-0.0, "-0", -0.0),
        (math.inf, "inf", math.inf),
        (3, "3", 3.0),
        (10**30, "1" + "0" * 30, 1e30),
        (Fraction(-1, 3), "-1/3", -1 / 3),
        (Decimal("1.10"), "1.10", 1.1),
        (np.float32(0.1), "0.100000001490116119384765625", float(np.float32(0.1))),
        (torch.tensor(2.0, dtype=torch.bfloat16), "2", 2.0),
        (" 2^-24 ", "2^-24", 2.0**-24),
        ("0x1.8p-3", "0x1.8p-3", 0.1875),
        ("1e999999999", "1e999999999", math.inf),
    ],
)
def test_any_number_is_taken_without_rounding(given_value: Any, source: str, nearest: float) -> None:
    viewer = BitViewer(given_value)
    assert viewer.source == source
    assert viewer.value == nearest
    assert math.copysign(1, viewer.value) == math.copysign(1, nearest)


@given(st.floats(allow_nan=False))
@settings(deadline=None, max_examples=60)
def test_a_float_keeps_every_bit_as_text(value: float) -> None:
    number = read_number(write_source(value))
    if math.isfinite(value):
        assert Fraction(number.numerator, number.denominator) == abs(Fraction(value))
    assert number.sign == (math.copysign(1, value) < 0)


@given(st.sampled_from(sorted(FORMATS)), st.data())
@settings(deadline=None, max_examples=60)
def test_a_pattern_stays_the_pattern_in_its_format(name: str, data: Any) -> None:
    fmt = FORMATS[name]
    code = data.draw(st.integers(0, (1 << fmt.bits) - 1))
    text = f"{name}:0x{code:X}"
    assert read_source(text).code == code
    assert int(BitViewer(text, formats=(name,)).codes[name], 16) == code


def test_a_code_set_from_python_becomes_the_source() -> None:
    viewer = BitViewer(1, formats=("fp16", "bf16"))
    seen: list[dict[str, str]] = []
    viewer.observe(lambda change: seen.append(change.new), names=["codes"])
    viewer.codes = {"fp16": 0x3C01}
    assert (viewer.source, viewer.value) == ("fp16:0x3C01", 1 + 2**-10)
    assert viewer.codes == {"fp16": "0x3C01", "bf16": "0x3F80"}
    viewer.codes = viewer.codes | {"bf16": "0x4000"}
    assert viewer.codes == {"fp16": "0x4000", "bf16": "0x4000"}
    assert seen[-1] == viewer.codes
    before = len(seen)
    viewer.codes = dict(viewer.codes)
    assert len(seen) == before


def test_nan_payloads_stay_and_formats_without_nan_have_no_code() -> None:
    viewer = BitViewer("fp16:0x7C05", formats=("fp16", "fp32", "fp4_e2m1"))
    assert viewer.codes == {"fp16": "0x7C05", "fp32": "0x7FC00000"}
    assert math.isnan(viewer.value)


def test_the_front_end_may_send_source_and_codes_at_once() -> None:
    viewer = BitViewer(0, formats=("fp32",))
    seen: list[str] = []
    viewer.observe(lambda change: seen.append(change.new["fp32"]), names=["codes"])
    viewer.set_state({"source": "fp32:0x00000FFF", "codes": {"fp32": "0x00000FFF"}})
    assert seen == ["0x00000FFF"]
    assert viewer.value == FORMATS["fp32"].decode(0xFFF)


@pytest.mark.parametrize(
    ("name", "bad", "part"),
    [
        ("value", "one tenth", "'one tenth' is not a number"),
        ("value", [1], "[1] is not a number"),
        ("value", "1/0", "'1/0' is not a number"),
        ("source", "fp16:0x10000", "code 0x10000 is not a fp16 code: those go from 0 to 0xffff"),
        ("source", "fp17:0x1", "format 'fp17' is unknown"),
        ("codes", {"fp16": 1 << 16}, "code 0x10000 is not a fp16 code"),
        ("codes", {"fp16": "3G00"}, "'3G00' is not a hexadecimal code"),
        ("codes", {"fp16": -1}, "-1 is not a code"),
        ("codes", {"bf16": 1}, "'bf16' is not shown; the formats are fp16, fp4_e2m1"),
        ("codes", [1], "codes are a dict from format name to code, not [1]"),
        ("formats", (), "formats are one or more"),
        ("formats", ("fp16", torch.float16), "each once, not fp16, fp16"),
        ("formats", ("fp17",), "format 'fp17' is unknown"),
        ("formats", ({"name": "x"},), "a format is described by name, exponent_bits"),
        ("rounding", "sideways", "'sideways' is not one of nearest_even"),
        ("overflow", "explode", "'explode' is not one of ieee, saturate"),
        ("draw", 1.0, "1.0 is not a number from 0 up to but not including 1"),
        ("draw", "0.5", "'0.5' is not a number"),
        ("update", "a bit", "'a bit' is not a number"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(name: str, bad: Any, part: str) -> None:
    viewer = BitViewer("0.1", formats=("fp16", "fp4_e2m1"), update="1e-4")
    before = viewer.state, dict(viewer.codes), viewer.value
    with pytest.raises((ValueError, TypeError)) as caught:
        setattr(viewer, name, bad)
    message = str(caught.value)
    assert part in message
    assert "\n" not in message and ". " not in message
    assert (viewer.state, dict(viewer.codes), viewer.value) == before


def test_a_format_that_cannot_exist_is_refused() -> None:
    spec = {"name": "x", "exponent_bits": 16, "fraction_bits": 3, "bias": 7, "specials": "ieee", "signed": True}
    with pytest.raises(ValueError, match="exponent_bits goes from 0 to 15, not 16"):
        BitViewer(1, formats=(spec,))


def test_a_pattern_outlives_its_format() -> None:
    custom = FloatFormat("custom", 3, 2)
    viewer = BitViewer("custom:0xD", formats=(custom, "fp16"))
    value = viewer.value
    viewer.formats = ("fp16",)
    assert viewer.value == value == custom.decode(0xD)
    assert ":" not in viewer.source


def test_rounding_overflow_and_draw_change_the_codes() -> None:
    viewer = BitViewer(2051, formats=("fp16", "fp8_e4m3fn"))
    assert viewer.codes == {"fp16": "0x6802", "fp8_e4m3fn": "0x7F"}
    viewer.rounding, viewer.overflow = "down", "saturate"
    assert viewer.codes == {"fp16": "0x6801", "fp8_e4m3fn": "0x7E"}
    viewer.rounding = "stochastic"
    viewer.draw = 0.75
    assert viewer.codes["fp16"] == "0x6801"
    viewer.draw = 0.25
    assert viewer.codes["fp16"] == "0x6802"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_live_tensor_element_is_written_back(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3).to(dtype)
    viewer = BitViewer.of(tensor, (1, -1))
    viewer.value = -1.5
    assert tensor.to(torch.float64).tolist() == [[0, 0, 0], [0, 0, -1.5]]
    name = viewer.formats[0]["name"]
    viewer.codes = {name: FORMATS[name].next_up(int(viewer.codes[name], 16))}
    assert float(tensor[1, 2]) == FORMATS[name].decode(int(viewer.codes[name], 16)) > -1.5
    tensor.view(-1)[5] = 0.25
    viewer.refresh()
    assert viewer.value == 0.25


def test_a_live_parameter_keeps_its_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    BitViewer.of(weight, 0).value = 3
    (weight * 2).sum().backward()
    assert weight.tolist() == [3.0, 1.0]
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("tensor", "index", "part"),
    [
        (torch.zeros(3), 3, "index (3,) picks no single element of a tensor of shape (3,)"),
        (torch.zeros(2, 2), 1, "picks no single element"),
        (torch.zeros(2, dtype=torch.int32), 0, "a tensor of floats is needed, not of torch.int32"),
        ([1.0], 0, "a torch tensor is needed, not list"),
    ],
)
def test_what_is_no_element_is_refused(tensor: Any, index: Any, part: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        BitViewer.of(tensor, index)
    assert part in str(caught.value)


def test_the_state_comes_back_the_same() -> None:
    first = BitViewer(
        "fp16:0x7C05",
        formats=("fp16", FloatFormat("mine", 4, 3, bias=-2, specials="fn", signed=False)),
        draw=0.1,
        update="+1e+2",
    )
    second = BitViewer.from_state(first.state)
    assert second.state == first.state
    assert (second.codes, second.formats, second.update) == (first.codes, first.formats, "+1e+2")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a state names"),
        ("value=1", "a state names"),
        ("value=1&formats=a:b&rounding=up&overflow=ieee&draw=0&update=", "'a:b' is not a format"),
        ("value=1&formats=fp16&rounding=up&overflow=ieee&draw=x&update=", "the draw in a state is a number"),
    ],
)
def test_a_broken_state_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError) as caught:
        BitViewer.from_state(text)
    assert part in str(caught.value)


def test_the_repr_is_stable() -> None:
    wanted = "BitViewer(source='0.1', formats=('fp32', 'fp16'), rounding='nearest_even', overflow='ieee')"
    assert repr(BitViewer("0.1", formats=("fp32", "fp16"))) == repr(BitViewer("0.1", formats=("fp32", "fp16"))) == wanted
