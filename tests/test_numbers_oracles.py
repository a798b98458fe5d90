"""The codec against tools that others wrote: numpy, torch, ml_dtypes, gfloat. Every disagreement stands with its reason."""

from functools import cache

import gfloat
import gfloat.formats as gformats
import ml_dtypes
import numpy as np
import pytest
import torch

from labkit.numbers import FORMATS, FloatFormat
from labkit.numbers.tensors import quantize

#: Format -> the dtype of numpy or ml_dtypes, and torch's, where there is one that converts.
TWINS = {
    "fp16": (np.float16, torch.float16),
    "bf16": (ml_dtypes.bfloat16, torch.bfloat16),
    "fp8_e4m3fn": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
    "fp8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, torch.float8_e4m3fnuz),
    "fp8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, torch.float8_e5m2fnuz),
    "fp6_e3m2": (ml_dtypes.float6_e3m2fn, None),
    "fp6_e2m3": (ml_dtypes.float6_e2m3fn, None),
    "fp4_e2m1": (ml_dtypes.float4_e2m1fn, None),
    "e8m0": (ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu),
}
WITH_TORCH = [name for name, (_, twin) in TWINS.items() if twin is not None]


def unsigned(fmt: FloatFormat) -> type:
    return np.uint16 if fmt.bits == 16 else np.uint8


def same(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Equal values, equal signs of zero; a NaN equals a NaN."""
    nan = np.isnan(ours) & np.isnan(theirs)
    return nan | ((ours == theirs) & (np.signbit(ours) == np.signbit(theirs)))


@cache
def decode_all(fmt: FloatFormat) -> np.ndarray:
    return np.array([fmt.decode(code) for code in range(1 << fmt.bits)])


# --- decode: every code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWINS)
def test_every_code_decodes_as_in_numpy_or_ml_dtypes(name: str) -> None:
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=unsigned(fmt))
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaNs
        theirs = codes.view(TWINS[name][0]).astype(np.float64)
    ours = decode_all(fmt)
    assert same(ours, theirs).all()
    # One difference, in a sign that has no meaning: ml_dtypes gives the one NaN of a fnuz format (0x80) a minus, we give none.
    minus = np.isnan(ours) & (np.signbit(ours) != np.signbit(theirs))
    assert list(codes[minus]) == ([0x80] if name.endswith("fnuz") else [])


@pytest.mark.parametrize("name", WITH_TORCH)
def test_every_code_decodes_as_in_torch(name: str) -> None:
    fmt = FORMATS[name]
    codes = torch.from_numpy(np.arange(1 << fmt.bits, dtype=unsigned(fmt)))
    assert same(decode_all(fmt), codes.view(TWINS[name][1]).to(torch.float64).numpy()).all()


@pytest.mark.parametrize("name", TWINS)
def test_limits_equal_finfo(name: str) -> None:
    fmt, info = FORMATS[name], ml_dtypes.finfo(TWINS[name][0])
    assert fmt.max == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    if not fmt.is_scale:  # ml_dtypes calls a smallest subnormal of e8m0 what is its smallest normal
        assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.eps == float(info.eps)


def test_torch_finfo_states_half_the_eps_of_the_fnuz_formats() -> None:
    """Checked here so that the lesson on finfo stays true: the gap from 1 to its neighbour is 0.25, torch says 0.125."""
    one = torch.tensor(1.0).to(torch.float8_e5m2fnuz)
    above = (one.view(torch.uint8) + 1).view(torch.float8_e5m2fnuz)
    gap = float(above.float() - one.float())
    assert gap == FORMATS["fp8_e5m2fnuz"].eps == 0.25
    assert torch.finfo(torch.float8_e5m2fnuz).eps == 0.125


# --- encode: every midpoint and its neighbours -------------------------------------------------------------------------


@cache
def midpoints(fmt: FloatFormat) -> np.ndarray:
    """fp32 numbers at every tie between neighbours of `fmt`, one step of fp32 to each side, and the same negated.

    Ends with the tie at which an overflow begins, if the exponent had no limit.
    """
    values = decode_all(fmt)[: fmt.max_code + 1]
    beyond = values[-1] + float(fmt.ulp(fmt.max_code))
    ties = ((values + np.append(values[1:], beyond)) / 2).astype(np.float32)
    around = np.concatenate([values.astype(np.float32), np.nextafter(ties, np.float32(0)), ties])
    around = np.concatenate([around, np.nextafter(ties, np.float32(np.inf))])
    return np.concatenate([around, -around])


def codes_of(x: np.ndarray, name: str, twin: object) -> np.ndarray:
    if isinstance(twin, torch.dtype):
        return torch.from_numpy(x).to(twin).view(torch.uint16 if FORMATS[name].bits == 16 else torch.uint8).numpy()
    with np.errstate(over="ignore"):
        return x.astype(twin).view(unsigned(FORMATS[name]))


def agreeing(x: np.ndarray, name: str, tool: str) -> np.ndarray:
    """Which of `x` the tool and we are meant to agree on. Everything else is listed here, with its reason."""
    fmt = FORMATS[name]
    agree = np.ones(len(x), dtype=bool)
    if name == "fp8_e4m3fn" and tool == "torch":
        # torch 2.13 saturates E4M3FN where others overflow to NaN: our overflow="saturate"; compared in its own test.
        agree &= np.abs(x) <= 464
    if name == "e8m0":
        # Nothing agrees on what a format without sign and zero makes of negatives and zero. torch drops the sign and rounds
        # the magnitude; ml_dtypes makes both NaN. We: negatives NaN, zero the smallest value, as an underflow is.
        agree &= x > 0
        # Between the two smallest values both always go up, not to the nearest.
        agree &= (x <= 2.0**-127) | (x >= 1.5 * 2.0**-127)
    if not fmt.has_nan:
        agree &= ~np.isnan(x)  # ml_dtypes makes a NaN zero in formats without NaN; we refuse it
    return agree


@pytest.mark.parametrize(
    ("name", "tool"), [(name, "numpy or ml_dtypes") for name in TWINS] + [(name, "torch") for name in WITH_TORCH]
)
def test_every_midpoint_from_fp32_encodes_as_theirs(name: str, tool: str) -> None:
    fmt, twin = FORMATS[name], TWINS[name][tool == "torch"]
    x = midpoints(fmt)
    x = x[agreeing(x, name, tool)]
    theirs = codes_of(x, name, twin)
    # All of them through quantize; one by one through encode where there are few, else a spread of them.
    ours = quantize(torch.from_numpy(x), fmt).double().numpy()
    assert same(ours, decode_all(fmt)[theirs]).all()
    step = 1 if fmt.bits <= 8 else 101
    assert [fmt.encode(float(value)) for value in x[::step]] == theirs[::step].tolist()


def test_torch_saturates_e4m3fn_or_overflows_it_as_one_of_our_two_policies_does() -> None:
    fmt = FORMATS["fp8_e4m3fn"]
    x = [464.0, np.nextafter(np.float32(464), np.float32(500)), 465.0, 480.0, 1e9, np.inf, -465.0, -np.inf]
    theirs = codes_of(np.array(x, dtype=np.float32), "fp8_e4m3fn", torch.float8_e4m3fn).tolist()
    saturated = [fmt.encode(float(value), overflow="saturate") for value in x]
    overflowed = [fmt.encode(float(value)) for value in x]
    assert theirs in (saturated, overflowed)
    assert codes_of(np.array(x, dtype=np.float32), "fp8_e4m3fn", ml_dtypes.float8_e4m3fn).tolist() == overflowed


def test_nan_codes_of_the_tools() -> None:
    """We write the quiet NaN without payload and keep the sign, as numpy and ml_dtypes do; torch has a NaN of its own."""
    nans = np.array([np.nan, -np.nan], dtype=np.float32)
    for name, (twin, _) in TWINS.items():
        fmt = FORMATS[name]
        if fmt.has_nan:
            assert [fmt.encode(float(x)) for x in nans] == codes_of(nans, name, twin).tolist()
        else:
            assert codes_of(nans, name, twin).tolist()[1] == 0  # ml_dtypes: a zero; ours: refused
    for name in WITH_TORCH:
        fmt = FORMATS[name]
        codes = codes_of(nans, name, TWINS[name][1]).tolist()
        assert all("NaN" in fmt.fields(code).kind for code in codes)


def test_fp64_to_fp16_equals_numpy() -> None:
    fmt = FORMATS["fp16"]
    values = decode_all(fmt)[:0x7C00]
    ties = (values + np.append(values[1:], 65536.0)) / 2
    x = np.concatenate([values, np.nextafter(ties, 0), ties, np.nextafter(ties, np.inf)])
    x = np.concatenate([x, -x, np.random.default_rng(0).normal(size=50_000) * 10.0 ** np.arange(-8, 2).repeat(5000)])
    with np.errstate(over="ignore"):
        theirs = x.astype(np.float16)
    assert same(quantize(torch.from_numpy(x), fmt).numpy(), theirs.astype(np.float64)).all()
    spread = slice(None, None, 101)
    assert [fmt.encode(float(value)) for value in x[spread]] == theirs.view(np.uint16)[spread].tolist()


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3fn", "fp8_e5m2"])
def test_some_tools_round_twice_on_the_way_from_fp64_and_we_do_not(name: str) -> None:
    """Just above a tie, by less than fp32 can tell: through fp32 it becomes the tie, and the tie goes to even."""
    fmt = FORMATS[name]
    tie = 1 + fmt.eps / 2
    x = tie + 2.0**-40
    assert fmt.decode(fmt.encode(x)) == 1 + fmt.eps
    assert float(quantize(torch.tensor([x], dtype=torch.float64), fmt)) == 1 + fmt.eps
    assert fmt.decode(fmt.encode(float(np.float32(x)))) == 1


# --- gfloat: rounding modes -----------------------------------------------------------------------------------------------

GFLOAT = {
    "fp16": gformats.format_info_binary16,
    "bf16": gformats.format_info_bfloat16,
    "fp8_e4m3fn": gformats.format_info_ocp_e4m3,
    "fp8_e5m2": gformats.format_info_ocp_e5m2,
    "fp6_e3m2": gformats.format_info_ocp_e3m2,
    "fp6_e2m3": gformats.format_info_ocp_e2m3,
    "fp4_e2m1": gformats.format_info_ocp_e2m1,
}
MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("name", GFLOAT)
def test_rounding_modes_equal_gfloat(name: str, rounding: str) -> None:
    fmt, info = FORMATS[name], GFLOAT[name]
    rng = np.random.default_rng(5)
    exponents = rng.integers(fmt.min_exponent - fmt.fraction_bits - 3, int(np.log2(fmt.max)) + 3, 4000)
    x = np.ldexp(rng.choice([-1, 1], 4000) * rng.uniform(1, 2, 4000), exponents)
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, fmt.max, -fmt.max], midpoints(fmt)[:: max(fmt.bits // 4, 1)]])
    for saturate in (True, False) if fmt.has_nan else (True,):
        theirs = gfloat.round_ndarray(info, x.astype(np.float64), MODES[rounding], saturate)
        overflow = "saturate" if saturate else "ieee"
        ours = quantize(torch.from_numpy(x), fmt, rounding=rounding, overflow=overflow).numpy()
        assert same(ours, theirs).all(), x[~same(ours, theirs)][:5]
        few = slice(None, None, 23)
        one_by_one = [fmt.decode(fmt.encode(float(v), rounding=rounding, overflow=overflow)) for v in x[few]]
        assert same(np.array(one_by_one), theirs[few]).all()


def test_stochastic_rounding_equals_gfloat_where_its_random_bits_can_say_the_same() -> None:
    """gfloat goes away from zero when part + bits / 2^n >= 1; for a part that is a multiple of 2^-n, that is draw < part."""
    fmt, n = FORMATS["fp8_e5m2"], 4
    for part in range(1 << n):
        x = 1.25 + part / (1 << n) * fmt.eps
        for bits in range(1 << n):
            theirs = gfloat.round_float(GFLOAT["fp8_e5m2"], x, gfloat.RoundMode.StochasticFastest, srbits=bits, srnumbits=n)
            draw = 1 - (bits + 1) / (1 << n)
            assert fmt.decode(fmt.encode(x, rounding="stochastic", draw=draw)) == theirs
