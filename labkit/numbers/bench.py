"""What the room of numbers promises, measured: three codecs that agree on a million inputs, and the speed of `quantize`.

`python -m labkit bench numbers`; the last rows need gfloat (a test dependency), the JavaScript row needs node.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from labkit.numbers.formats import FORMATS, FloatFormat, Overflow, Rounding

INPUTS = 1_000_000
ELEMENTS = 10_000_000

_ROUNDINGS: tuple[Rounding, ...] = ("nearest_even", "nearest_away", "toward_zero", "up", "down")
_OVERFLOWS: tuple[Overflow, ...] = ("ieee", "saturate")
#: Each input is rounded in one of these ways, in turn.
MODES = [(rounding, overflow) for overflow in _OVERFLOWS for rounding in _ROUNDINGS]

_NODE = """
import { FORMATS, decode, encode } from "CODEC";
import { readFileSync, writeFileSync } from "node:fs";
const inputs = new BigUint64Array(new Uint8Array(readFileSync("IN")).buffer);
const modes = MODES;
const format = FORMATS["NAME"];
const codes = new BigUint64Array(inputs.length);
for (let i = 0; i < inputs.length; i++) {
  const [rounding, overflow] = modes[i % modes.length];
  codes[i] = encode(decode(FORMATS.fp64, inputs[i]), format, { rounding, overflow });
}
writeFileSync("OUT", new Uint8Array(codes.buffer));
"""

Row = tuple[str, float, str]


def bench() -> list[Row]:
    """All rows: agreement of the codecs, then ratios of times from this one run."""
    return [*agreement(), *speed()]


def agreement(count: int = INPUTS) -> list[Row]:
    """Inputs on which `encode`, `quantize` and (with node) the JavaScript codec give different codes, of every format."""
    inputs = _inputs(count)
    scripted = shutil.which("node") is not None
    tensors = javascript = 0
    for fmt in FORMATS.values():
        codes = _python(fmt, inputs)
        tensors += _different(fmt, codes, inputs)
        if scripted:
            javascript += int((codes != _javascript(fmt, inputs)).sum())
    what = f"of {len(inputs):,} inputs in {len(FORMATS)} formats, 10 ways of rounding: codes that differ"
    rows = [(f"encode against quantize, {what}", float(tensors), "0")]
    if scripted:
        rows.append((f"encode against JavaScript, {what}", float(javascript), "0"))
    return rows


def _inputs(count: int) -> Any:
    """float64 numbers without NaN: half are any bits at all, half lie within 30 binades of 1."""
    import numpy as np

    rng = np.random.default_rng(2026)
    any_bits = rng.integers(0, 2**64, count // 2, dtype=np.uint64).view(np.float64)
    any_bits = np.where(np.isnan(any_bits), 0.1, any_bits)
    near = np.ldexp(rng.uniform(-2, 2, count - count // 2), rng.integers(-30, 31, count - count // 2))
    return np.concatenate([any_bits, near])


def _python(fmt: FloatFormat, inputs: Any) -> Any:
    import numpy as np

    codes = np.empty(len(inputs), dtype=np.uint64)
    for index, value in enumerate(inputs.tolist()):
        rounding, overflow = MODES[index % len(MODES)]
        codes[index] = fmt.encode(value, rounding=rounding, overflow=overflow)
    return codes


def _javascript(fmt: FloatFormat, inputs: Any) -> Any:
    import numpy as np

    codec = Path(__file__).parents[1] / "widgets" / "static" / "codec.js"
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        inputs.tofile(source)
        script = _NODE.replace("MODES", str([list(mode) for mode in MODES])).replace("NAME", fmt.name)
        for word, path in (("CODEC", codec), ("IN", source), ("OUT", target)):
            script = script.replace(f'"{word}"', f'"{path.as_posix()}"')
        subprocess.run(["node", "--input-type=module", "-e", script], check=True)
        return np.fromfile(target, dtype=np.uint64)


def _different(fmt: FloatFormat, codes: Any, inputs: Any) -> int:
    """How many elements `quantize` gives another value than `codes` stand for."""
    import numpy as np
    import torch

    from labkit.numbers.tensors import quantize

    known = {int(code): fmt.decode(int(code)) for code in np.unique(codes)}
    expected = np.array([known[int(code)] for code in codes])
    different = 0
    for index, (rounding, overflow) in enumerate(MODES):
        part = slice(index, None, len(MODES))
        ours = quantize(torch.from_numpy(inputs[part].copy()), fmt, rounding=rounding, overflow=overflow).numpy()
        theirs = expected[part]
        same = (np.isnan(ours) & np.isnan(theirs)) | ((ours == theirs) & (np.signbit(ours) == np.signbit(theirs)))
        different += int((~same).sum())
    return different


def speed(count: int = ELEMENTS) -> list[Row]:
    """Times of `quantize` on `count` fp32 elements, over those of gfloat and of torch's own casts there and back."""
    import torch

    from labkit.numbers.tensors import quantize

    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    rows = []
    for name, info in _gfloat_formats().items():
        ratio = _ratio(partial(_gfloat_round, info, x), partial(quantize, x, name), 2)
        rows.append((f"gfloat's time over quantize's, {name}, {count:,} elements", ratio, "at least 5"))
    for name, dtype in _torch_dtypes().items():
        ratio = _ratio(partial(quantize, x, name), partial(_there_and_back, x, dtype))
        rows.append((f"quantize's time over torch's cast to {name} and back", ratio, "at most 3"))
    return rows


def _gfloat_formats() -> dict[str, Any]:
    try:
        from gfloat import formats
    except ImportError:
        return {}
    return {
        "fp16": formats.format_info_binary16,
        "bf16": formats.format_info_bfloat16,
        "fp8_e4m3fn": formats.format_info_ocp_e4m3,
        "fp4_e2m1": formats.format_info_ocp_e2m1,
    }


def _there_and_back(x: Any, dtype: Any) -> Any:
    return x.to(dtype).to(x.dtype)


def _gfloat_round(info: Any, x: Any) -> Any:
    from gfloat import round_ndarray

    return round_ndarray(info, x.numpy(), sat=True)


def _torch_dtypes() -> dict[str, Any]:
    import torch

    return {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8_e4m3fn": torch.float8_e4m3fn,
        "fp8_e5m2": torch.float8_e5m2,
        "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
        "fp8_e5m2fnuz": torch.float8_e5m2fnuz,
        "e8m0": torch.float8_e8m0fnu,
    }


def _ratio(one: Callable[[], Any], other: Callable[[], Any], runs: int = 5) -> float:
    """The fastest time of `one` over that of `other`, measured in turns so that a busy machine disturbs both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for call, taken in zip((one, other), times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return min(times[0]) / min(times[1])
