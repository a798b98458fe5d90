"""MX blocks: 32 elements and one power of two."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.numbers import FORMATS
from labkit.numbers.blocks import BLOCK, MX_FORMATS, SCALE_RULES, error_report, mx_quantize


def element_format(name: str):
    return FORMATS[MX_FORMATS[name]]


@pytest.mark.parametrize(
    ("name", "rule", "largest", "scale"),
    [
        # E2M1's largest is 6 = 1.5 * 2^2. floor: 2^(floor(log2 m) - 2); round_up: the least power of two >= m / 6.
        ("mxfp4", "floor", 6.0, 1.0),
        ("mxfp4", "floor", 7.9, 1.0),
        ("mxfp4", "floor", 8.0, 2.0),
        ("mxfp4", "round_up", 6.0, 1.0),
        ("mxfp4", "round_up", 6.0000005, 2.0),
        ("mxfp4", "round_up", 12.0, 2.0),
        # E4M3's largest is 448 = 1.75 * 2^8
        ("mxfp8_e4m3", "floor", 511.0, 1.0),
        ("mxfp8_e4m3", "round_up", 448.0, 1.0),
        ("mxfp8_e4m3", "round_up", 449.0, 2.0),
        ("mxfp8_e5m2", "floor", 1.0, 2.0**-15),
        ("mxfp6_e3m2", "round_up", 28.0, 1.0),
        ("mxfp6_e2m3", "floor", 7.9, 1.0),
    ],
)
def test_scale_follows_the_rule(name: str, rule, largest: float, scale: float) -> None:
    mx = mx_quantize(torch.tensor([largest, -0.1, 0.0]), name, scale_rule=rule)
    assert mx.scales.tolist() == [scale]


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("name", MX_FORMATS)
def test_every_element_and_scale_is_a_value_of_its_format(name: str, rule) -> None:
    x = torch.randn(5, 7, 70) * 10.0 ** torch.randint(-30, 30, (5, 7, 1))
    mx = mx_quantize(x, name, scale_rule=rule)
    assert mx.elements.shape == (5, 7, 3, BLOCK) and mx.scales.shape == (5, 7, 3)
    assert set(mx.elements.flatten().tolist()) <= set(element_format(name).values())
    assert set(mx.scales.flatten().tolist()) <= set(FORMATS["e8m0"].values())
    assert mx.dequantize().shape == x.shape


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=70), st.sampled_from(list(MX_FORMATS)))
def test_round_up_never_saturates_and_errs_by_half_an_ulp(values: list[float], name: str) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    fmt = element_format(name)
    mx = mx_quantize(x, name, scale_rule="round_up")
    for index, value in enumerate(values):
        scale = float(mx.scales[index // BLOCK])
        element = float(mx.elements[index // BLOCK, index % BLOCK])
        assert abs(value) <= scale * fmt.max
        assert element == fmt.decode(fmt.encode(value / scale)) or element == value == 0


@pytest.mark.parametrize("name", MX_FORMATS)
def test_floor_saturates_at_most_by_the_stated_share(name: str) -> None:
    fmt = element_format(name)
    top = 2.0 ** (math.frexp(fmt.max)[1])
    x = torch.linspace(-top * 0.999, top * 0.999, BLOCK)
    mx = mx_quantize(x, name, scale_rule="floor")
    assert mx.scales.tolist() == [1.0]
    assert mx.dequantize().abs().max() == fmt.max


def test_powers_of_two_of_a_tensor_give_the_same_elements() -> None:
    x = torch.randn(4, 64)
    for name in MX_FORMATS:
        base, moved = mx_quantize(x, name), mx_quantize(x * 2.0**40, name)
        assert torch.equal(base.elements, moved.elements)
        assert torch.equal(base.scales * 2.0**40, moved.scales)


def test_zeros_and_nonfinite_blocks() -> None:
    x = torch.zeros(3 * BLOCK)
    x[BLOCK + 1], x[2 * BLOCK] = math.nan, math.inf
    for name in MX_FORMATS:
        back = mx_quantize(x, name).dequantize()
        assert back[:BLOCK].eq(0).all() and back[BLOCK:].isnan().all()
        assert float(mx_quantize(x, name).scales[0]) == 2.0**-127


def test_bits_an_element_count_the_scale() -> None:
    assert [mx_quantize(torch.ones(1), name).bits_per_element for name in MX_FORMATS] == [8.25, 8.25, 6.25, 6.25, 4.25]


def test_stochastic_elements_repeat_with_their_seed() -> None:
    x = torch.randn(64)
    runs = [mx_quantize(x, "mxfp4", rounding="stochastic", generator=torch.Generator().manual_seed(1)).elements for _ in "ab"]
    assert torch.equal(*runs) and not torch.equal(runs[0], mx_quantize(x, "mxfp4").elements)


def test_error_report_agrees_with_its_own_arithmetic() -> None:
    x = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    report = error_report(x)
    assert len(report) == len(MX_FORMATS) * len(SCALE_RULES)
    for row in report.to_dict("records"):
        back = mx_quantize(x, row["format"], scale_rule=row["scale rule"]).dequantize().double()
        noise = (back - x.double()).square().sum()
        assert row["signal to noise (dB)"] == pytest.approx(10 * math.log10(x.double().square().sum() / noise))
        assert (row["saturated (%)"] == 0) == (row["scale rule"] == "round_up")
    best = report.set_index(["format", "scale rule"])["signal to noise (dB)"]
    assert best["mxfp8_e4m3"].max() > best["mxfp6_e3m2"].max() > best["mxfp4"].max()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="MX format 'fp4' is unknown; there are: mxfp8_e4m3"):
        mx_quantize(torch.ones(1), "fp4")
    with pytest.raises(ValueError, match="scale_rule 'ceil' is unknown; there are: floor, round_up"):
        mx_quantize(torch.ones(1), "mxfp4", scale_rule="ceil")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a floating-point tensor, not torch.int64"):
        mx_quantize(torch.tensor([1]), "mxfp4")
    with pytest.raises(ValueError, match="at least one dimension"):
        mx_quantize(torch.tensor(1.0), "mxfp4")
