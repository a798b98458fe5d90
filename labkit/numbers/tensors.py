"""Rounding whole tensors to any format, and their bits.

`quantize` is the vectorised twin of `FloatFormat.encode` followed by `decode`: one rounding, whatever the source dtype.
"""

from typing import Any

import torch
from torch import Tensor

from labkit.numbers.formats import FORMATS, OVERFLOWS, ROUNDINGS, FloatFormat, Overflow, Rounding, as_format
from labkit.numbers.text import binary, decimal

#: Elements worked on at once on a CPU: few enough that no intermediate of the whole tensor's size is made, many enough that a
#: busy machine does not spend its time at the end of each operation, waiting for threads.
CPU_CHUNK = 1 << 20

_INTEGER = {torch.float64: torch.int64, torch.float32: torch.int32}
#: Which of the formats a dtype's own values are.
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def quantize(
    tensor: Tensor,
    fmt: Any,
    *,
    rounding: Rounding = "nearest_even",
    overflow: Overflow = "ieee",
    generator: torch.Generator | None = None,
) -> Tensor:
    """`tensor` with every element rounded once to a value of `fmt` ("fake quantization").

    The result has the shape of `tensor` and its dtype, or float32 or float64 where that dtype cannot hold every value of `fmt`.
    Roundings, overflow, signs of zero and NaN are those of `FloatFormat.encode`; "stochastic" draws one uniform number an
    element from `generator`, in the dtype it works in (so probabilities are multiples of 2^-24 for float32 and 2^-53 for
    float64). Gradients do not pass.

    Raises TypeError for a tensor that is not floating-point, ValueError for a format that float64 cannot hold, for NaN where
    the format has none, and for an unknown mode.
    """
    fmt = as_format(fmt)
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding {rounding!r} is unknown; there are: {', '.join(ROUNDINGS)}")
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow {overflow!r} is unknown; there are: {', '.join(OVERFLOWS)}")
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"quantize takes a floating-point tensor, not {getattr(tensor, 'dtype', type(tensor).__name__)}")
    result_dtype = _first_holding(fmt, [tensor.dtype, torch.float32, torch.float64])
    work_dtype = _first_holding(fmt, [result_dtype, torch.float32, torch.float64], working=True)
    by_bits = fmt == FORMATS["e8m0"] and tensor.dtype != torch.float64 and rounding != "stochastic"
    if by_bits:
        work_dtype = torch.float32
    source = tensor.detach().contiguous().view(-1)
    result = torch.empty(source.shape, dtype=result_dtype, device=source.device)
    if not source.numel():
        return result.view(tensor.shape)
    size = CPU_CHUNK if source.device.type == "cpu" else source.numel()
    for chunk, out in zip(source.split(size), result.split(size), strict=True):
        work = out if result_dtype == work_dtype else torch.empty_like(out, dtype=work_dtype)
        if by_bits:
            _round_to_e8m0(chunk.to(work_dtype), work, rounding, overflow)
        else:
            _round(chunk.to(work_dtype), work, fmt, rounding, overflow, generator)
        if work is not out:
            out.copy_(work)
    return result.view(tensor.shape)


def _first_holding(fmt: FloatFormat, dtypes: list[torch.dtype], *, working: bool = False) -> torch.dtype:
    """The first dtype that holds every finite value of `fmt`; `working` ones must also be float32 or float64 and keep the
    format's normal numbers normal, because the ulp is read from the exponent field."""
    for dtype in dtypes:
        holder = FORMATS[_DTYPES[dtype]] if dtype in _DTYPES else None
        if holder is None or (working and dtype not in _INTEGER):
            continue
        lowest = fmt.min_exponent - fmt.fraction_bits
        fits = (
            holder.fraction_bits >= fmt.fraction_bits
            and lowest >= holder.min_exponent - holder.fraction_bits
            and fmt.decode_exact(fmt.max_code) <= holder.decode_exact(holder.max_code)
        )
        if fits and (not working or fmt.min_exponent >= holder.min_exponent):
            return dtype
    raise ValueError(f"{fmt.name} has values that float64 does not hold; use encode, a number at a time")


def _round(
    x: Tensor, y: Tensor, fmt: FloatFormat, rounding: Rounding, overflow: Overflow, generator: torch.Generator | None
) -> None:
    """Write `x` (1-D, float32 or float64) rounded to `fmt` into `y`, in place for the sake of speed."""
    if fmt.min_exponent > fmt.fraction_bits:  # an ulp above 1: a tiny number divided by it could underflow to zero
        floor = 2.0 ** (fmt.min_exponent - fmt.fraction_bits - 60)
        x = torch.where((x != 0) & (x.abs() < floor), x.sign() * floor, x)
    ulp = _ulp(x, fmt)
    # Dividing by a power of two is exact, and so is every rounding of the quotient to an integer: the format's own rounding.
    _round_to_integer(torch.div(x, ulp, out=y), rounding, generator).mul_(ulp)
    _overflow(y, x, fmt, rounding, overflow)
    if not fmt.signed:
        _no_negatives(y, x, fmt, overflow)
    if fmt.is_scale:
        y.clamp_(min=fmt.smallest_normal)
    elif not fmt.has_negative_zero:
        y.add_(0.0)  # -0.0 + 0.0 is +0.0; every other value stays
    if not fmt.has_nan and bool(y.isnan().any()):
        raise ValueError(f"the tensor holds NaN, and {fmt.name} has no NaN: each of its codes is a number")


def _round_to_e8m0(x: Tensor, y: Tensor, rounding: Rounding, overflow: Overflow) -> None:
    """Write `x` (1-D, float32) rounded to E8M0 into `y`: float32's exponent field is E8M0's code, so whole numbers do it.

    The general road goes through float64, for the sake of E8M0's smallest number: 2^-127 is subnormal in float32.
    """
    # What is added to the bits before the fraction is cut off; and the least subnormal that is rounded up to 2^-126.
    carry, up_from = {
        "nearest_even": (0x400000, 0x600000),
        "nearest_away": (0x400000, 0x600000),
        "toward_zero": (0, 0x800000),
        "down": (0, 0x800000),
        "up": (0x7FFFFF, 0x400001),
    }[rounding]
    low, high = torch.aminmax(x)
    # A mask of -1 and 0 from the sign bit, and not `masked_fill`, which costs as much as all the rest together.
    source = x.add(0.0).view(torch.int32)  # -0.0 + 0.0 is +0.0, which has no sign bit
    codes = y.view(torch.int32)
    torch.add(source, carry, out=codes).bitwise_and_(0x7F800000)
    if not bool(low >= 2.0**-126):
        large = source.clamp(min=0).neg_().add_(up_from - 1).bitwise_right_shift_(31)
        codes.bitwise_and_(large).clamp_(min=0x400000)  # 2^-127
        if overflow != "saturate":
            codes.bitwise_or_(source.bitwise_right_shift_(31).bitwise_and_(0x7FC00000))  # negatives become NaN
    if not bool(high < 2.0**127):
        largest = 0x7F000000
        beyond = largest if overflow == "saturate" or rounding in ("toward_zero", "down") else 0x7FC00000
        codes.masked_fill_((x > 0) & (codes > largest), beyond)
        codes.masked_fill_(x == torch.inf, largest if overflow == "saturate" else 0x7FC00000)
        codes.masked_fill_(x.isnan(), 0x7FC00000)


def _ulp(x: Tensor, fmt: FloatFormat) -> Tensor:
    """The format's spacing at each element: 2^(exponent - fraction_bits), the exponent kept within the format's range.

    For a number in [2^k, 2^(k+1)) the exponent field alone, read as a float, is 2^k.
    """
    holder = FORMATS[_DTYPES[x.dtype]]
    low, high = fmt.min_exponent, fmt.fields(fmt.max_code).true_exponent
    assert high is not None and holder.bias is not None
    exponents = x.view(_INTEGER[x.dtype]) & (holder.infinity_code)
    exponents.clamp_(*((exponent + holder.bias) << holder.fraction_bits for exponent in (low, high)))
    return exponents.view(x.dtype).mul_(2.0**-fmt.fraction_bits)


def _round_to_integer(q: Tensor, rounding: Rounding, generator: torch.Generator | None) -> Tensor:
    """Round `q` to integers in place."""
    match rounding:
        case "nearest_even":
            return q.round_()
        case "toward_zero":
            return q.trunc_()
        case "up":
            return q.ceil_()
        case "down":
            return q.floor_()
    part = q.frac().abs_()  # exact
    q.trunc_()
    if rounding == "nearest_away":
        away = part >= 0.5
    else:
        away = torch.rand(part.shape, dtype=part.dtype, device=part.device, generator=generator) < part
    return q.add_(away.to(q.dtype).copysign_(q))


def _overflow(y: Tensor, x: Tensor, fmt: FloatFormat, rounding: Rounding, overflow: Overflow) -> None:
    """Replace in `y` what lies beyond the largest number of `fmt`, by the rules of `encode`."""
    largest = fmt.max
    low, high = torch.aminmax(y)
    if bool((low >= -largest) & (high <= largest)):
        return  # neither an overflow nor a NaN: the common case, in one pass
    if overflow == "saturate" or fmt.specials == "finite":
        y.clamp_(-largest, largest)
        return
    beyond = torch.inf if fmt.has_infinity else torch.nan
    for sign, stays in ((1, ("toward_zero", "down")), (-1, ("toward_zero", "up"))):
        y.masked_fill_(y * sign > largest, sign * largest if rounding in stays else sign * beyond)
        y.masked_fill_(x == sign * torch.inf, sign * beyond)


def _no_negatives(y: Tensor, x: Tensor, fmt: FloatFormat, overflow: Overflow) -> None:
    """What an unsigned format makes of negatives; one that rounds to a zero that the format has is a zero."""
    lost = overflow == "saturate" or not fmt.has_nan
    y.masked_fill_((x if fmt.is_scale else y) < 0, 0.0 if lost else torch.nan)
    if fmt.has_zero:
        y.abs_()


def bits(tensor: Tensor) -> Tensor:
    """The codes of `tensor` as int64, same shape; int64 holds the codes of float64 as two's complement.

    Raises TypeError for a tensor that is not floating-point.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"bits takes a floating-point tensor, not {getattr(tensor, 'dtype', type(tensor).__name__)}")
    width = tensor.element_size() * 8
    signed = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    codes = tensor.detach().contiguous().view(signed).to(torch.int64)
    return codes if width == 64 else codes & ((1 << width) - 1)


def bits_frame(tensor: Tensor) -> Any:
    """A pandas DataFrame of `tensor`, a row an element: value, code in hex, bits in groups, class, exponent, exact decimal.

    Raises TypeError for a tensor that is not floating-point.
    """
    import pandas as pd

    codes = bits(tensor).view(-1).tolist()
    fmt = as_format(tensor.dtype)
    rows = []
    for code in codes:
        code %= 1 << fmt.bits
        parts = fmt.fields(code)
        rows.append(
            {
                "value": fmt.decode(code),
                "code": f"0x{code:0{fmt.hex_digits}X}",
                "bits": binary(fmt, code),
                "class": parts.kind,
                "exponent": parts.true_exponent,
                "exact": decimal(fmt, code),
            }
        )
    columns = ["value", "code", "bits", "class", "exponent", "exact"]
    return pd.DataFrame(rows, columns=columns).astype({"exponent": "Int64"})
