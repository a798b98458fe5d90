"""Whole tensors: quantize does to each element what encode does, in every dtype, rounding and policy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.numbers import FORMATS, OVERFLOWS, ROUNDINGS, FloatFormat
from labkit.numbers.tensors import CPU_CHUNK, bits, bits_frame, quantize

CUSTOM = [
    FloatFormat("fixed_m6", 0, 6, specials="finite"),
    FloatFormat("power_e4m0", 4, 0, specials="fn"),
    FloatFormat("ue4m3", 4, 3, specials="fn", signed=False),
    FloatFormat("far_e5m10", 5, 10, bias=-100),
    FloatFormat("low_e5m10", 5, 10, bias=160),
    FloatFormat("e5m30", 5, 30),
]
ALL = [*FORMATS.values(), *CUSTOM]


def hard_values(fmt: FloatFormat, count: int, seed: int = 0) -> torch.Tensor:
    """float64 numbers across and beyond the range of `fmt`: anything, ties, beside ties, specials, subnormals of float64."""
    rng = np.random.default_rng(seed)
    low = max(fmt.min_exponent - fmt.fraction_bits - 3, -1070)
    high = min(fmt.min_exponent + (1 << fmt.exponent_bits) + 2, 1023)
    x = np.ldexp(rng.choice([-1, 1], count) * rng.uniform(1, 2, count), rng.integers(low, high, count))
    codes = rng.integers(0, fmt.max_code, count, dtype=np.uint64)
    step = (fmt.decode_exact(fmt.next_up(int(code))) - fmt.decode_exact(int(code)) for code in codes)
    ties = np.array([float(fmt.decode_exact(int(code)) + gap / 2) for code, gap in zip(codes, step, strict=True)])
    specials = [0.0, -0.0, math.inf, -math.inf, fmt.max, -fmt.max, 5e-324, -5e-324, 1e-320, fmt.smallest_subnormal / 2]
    return torch.tensor(np.concatenate([x, ties, -ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), specials]))


def one_by_one(x: torch.Tensor, fmt: FloatFormat, draws: torch.Tensor | None = None, **modes) -> np.ndarray:
    chances = [None] * x.numel() if draws is None else draws.double().tolist()
    pairs = zip(x.double().tolist(), chances, strict=True)
    return np.array([fmt.decode(fmt.encode(value, draw=draw, **modes)) for value, draw in pairs])


def assert_same(ours: torch.Tensor, theirs: np.ndarray, x: torch.Tensor) -> None:
    got = ours.double().numpy()
    equal = (np.isnan(got) & np.isnan(theirs)) | ((got == theirs) & (np.signbit(got) == np.signbit(theirs)))
    assert equal.all(), [(a, b, c) for a, b, c in zip(x[~equal], got[~equal], theirs[~equal], strict=True)][:4]


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_quantize_equals_encode_from_float64(fmt: FloatFormat, overflow) -> None:
    x = hard_values(fmt, 40)
    for rounding in ROUNDINGS:
        generator, draws = None, None
        if rounding == "stochastic":
            generator = torch.Generator().manual_seed(7)
            draws = torch.rand(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        ours = quantize(x, fmt, rounding=rounding, overflow=overflow, generator=generator)
        assert ours.dtype == torch.float64
        assert_same(ours, one_by_one(x, fmt, draws, rounding=rounding, overflow=overflow), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_quantize_equals_encode_from_narrower_dtypes(fmt: FloatFormat, dtype: torch.dtype) -> None:
    x = hard_values(fmt, 30).to(dtype)
    for rounding in ("nearest_even", "nearest_away", "down"):
        ours = quantize(x, fmt, rounding=rounding)
        assert_same(ours, one_by_one(x, fmt, rounding=rounding), x)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20), st.sampled_from(ALL), st.sampled_from(ROUNDINGS[:5]))
def test_quantize_equals_encode_on_anything(values: list[float], fmt: FloatFormat, rounding) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    assert_same(quantize(x, fmt, rounding=rounding), one_by_one(x, fmt, rounding=rounding), x)


@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_quantize_twice_is_quantize_once(fmt: FloatFormat) -> None:
    once = quantize(hard_values(fmt, 50), fmt)
    assert torch.equal(quantize(once, fmt).nan_to_num(0.125), once.nan_to_num(0.125))


@pytest.mark.parametrize(
    ("dtype", "name", "result"),
    [
        (torch.float16, "fp8_e4m3fn", torch.float16),
        (torch.float16, "fp16", torch.float16),
        (torch.bfloat16, "fp4_e2m1", torch.bfloat16),
        (torch.bfloat16, "fp16", torch.float32),
        (torch.float16, "bf16", torch.float32),
        (torch.float16, "tf32", torch.float32),
        (torch.float32, "bf16", torch.float32),
        (torch.float32, "fp64", torch.float64),
        (torch.float32, "e8m0", torch.float32),
        (torch.float8_e5m2, "fp4_e2m1", torch.float32),
        (torch.float64, "fp4_e2m1", torch.float64),
    ],
)
def test_the_result_keeps_its_dtype_where_that_holds_the_format(dtype, name: str, result) -> None:
    assert quantize(torch.tensor([1.0]).to(dtype), name).dtype == result


def test_shape_layout_and_input_survive() -> None:
    x = torch.randn(6, 5, 4).transpose(0, 2)
    before = x.clone()
    y = quantize(x, "fp8_e5m2")
    assert y.shape == (4, 5, 6) and torch.equal(x, before)
    assert torch.equal(y, quantize(x.contiguous(), "fp8_e5m2"))
    assert quantize(torch.empty(0, 3), "bf16").shape == (0, 3)
    assert quantize(torch.tensor(1.1), "bf16").shape == ()
    assert not quantize(torch.ones(2, requires_grad=True), "bf16").requires_grad


def test_chunks_do_not_show() -> None:
    x = torch.randn(2 * CPU_CHUNK + 3)
    whole = quantize(x, "fp8_e4m3fn")
    assert torch.equal(whole[:10], quantize(x[:10], "fp8_e4m3fn"))
    assert torch.equal(whole[-10:], quantize(x[-10:], "fp8_e4m3fn"))


def test_stochastic_rounding_is_unbiased_and_repeats_with_its_seed() -> None:
    x = torch.full((200_000,), 1.1)
    first, second = (quantize(x, "bf16", rounding="stochastic", generator=torch.Generator().manual_seed(3)) for _ in "ab")
    assert torch.equal(first, second)
    low, high = sorted(set(first.tolist()))
    assert low < 1.1 < high and high - low == FORMATS["bf16"].eps
    part = (1.1 - low) / (high - low)
    assert abs(float((first == high).double().mean()) - part) < 5 * math.sqrt(part * (1 - part) / x.numel())


def test_nan_goes_through_or_is_refused() -> None:
    x = torch.tensor([1.0, math.nan])
    assert quantize(x, "fp8_e4m3fnuz").isnan().tolist() == [False, True]
    assert quantize(x, "fp16", overflow="saturate").isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match="the tensor holds NaN, and fp4_e2m1 has no NaN"):
        quantize(x, "fp4_e2m1")


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a floating-point tensor, not torch.int64"):
        quantize(torch.tensor([1]), "bf16")
    with pytest.raises(TypeError, match="takes a floating-point tensor, not list"):
        quantize([1.0], "bf16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fp128 has values that float64 does not hold"):
        quantize(torch.ones(1), FloatFormat("fp128", 15, 112))
    with pytest.raises(ValueError, match="'bf15' is unknown"):
        quantize(torch.ones(1), "bf15")
    with pytest.raises(ValueError, match="rounding 'floor' is unknown"):
        quantize(torch.ones(1), "bf16", rounding="floor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overflow 'wrap' is unknown"):
        quantize(torch.ones(1), "bf16", overflow="wrap")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_bits_are_the_codes(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, -1.0, 0.0], [-0.0, math.inf, 1.5]]).to(dtype)
    from labkit.numbers import as_format

    fmt = as_format(dtype)
    codes = bits(x)
    assert codes.shape == x.shape and codes.dtype == torch.int64
    expected = [fmt.encode(value) for value in x.double().flatten().tolist()]
    assert [code % (1 << fmt.bits) for code in codes.flatten().tolist()] == expected


def test_bits_frame_shows_each_element() -> None:
    frame = bits_frame(torch.tensor([1.5, -0.0, math.inf], dtype=torch.float16))
    assert frame["code"].tolist() == ["0x3E00", "0x8000", "0x7C00"]
    assert frame["bits"].tolist()[0] == "0 01111 1000000000"
    assert frame["class"].tolist() == ["normal", "zero", "infinity"]
    assert frame["exact"].tolist() == ["1.5", "-0", "inf"]
    assert frame["exponent"].isna().tolist() == [False, False, True]
    assert len(bits_frame(torch.empty(0))) == 0
    with pytest.raises(TypeError, match="bits takes a floating-point tensor, not torch.int32"):
        bits_frame(torch.ones(1, dtype=torch.int32))


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", [rounding for rounding in ROUNDINGS if rounding != "stochastic"])
def test_e8m0_by_whole_numbers_gives_what_the_general_road_through_float64_gives(rounding: str, overflow: str) -> None:
    edges = [0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF, 0x800000, 0x800001, 0xBFFFFF, 0xC00000]
    edges += [
        0xC00001,
        0x7EFFFFFF,
        0x7F000000,
        0x7F000001,
        0x7F3FFFFF,
        0x7F400000,
        0x7F7FFFFF,
        0x7F800000,
        0x7F800001,
        0x7FFFFFFF,
    ]
    draw = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0))
    narrow = torch.arange(-(2**15), 2**15).to(torch.int16)
    both = torch.tensor(edges + [edge - 2**31 for edge in edges])
    inputs = [part.to(torch.int32).view(torch.float32) for part in (draw, both)]
    inputs += [
        torch.tensor(one) for one in ([1.5, 3.0, 2.0**-126], [1.6 * 2.0**127], [math.nan], [-1.0, 2.0], [-math.nan, 1.0])
    ]
    for x in [*inputs, narrow.view(torch.float16), narrow.view(torch.bfloat16)]:
        ours = quantize(x, "e8m0", rounding=rounding, overflow=overflow)
        general = quantize(x.double(), "e8m0", rounding=rounding, overflow=overflow)
        torch.testing.assert_close(ours.double(), general, rtol=0, atol=0, equal_nan=True)
