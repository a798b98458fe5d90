"""NumberLine and RangeExplorer from Python, and the shares that the page computes against quantize."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.numbers import FORMATS
from labkit.numbers.tensors import quantize
from labkit.widgets import NumberLine, RangeExplorer
from labkit.widgets.base import script
from labkit.widgets.range_explorer import exponent_histogram


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function (body, data) -> what the JavaScript expression `body` gives, with the shared modules as `lab`."""
    program = shutil.which("node")
    if program is None:
        message = "no node on the PATH: install Node.js to test what the widgets compute"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    folder: Path = tmp_path_factory.mktemp("explorers")
    (folder / "lab.mjs").write_text(script("codec.js", "dom.js", "histogram.js"), encoding="utf-8")
    line = script("codec.js", "dom.js", "number_line.js")
    (folder / "line.mjs").write_text(line, encoding="utf-8")

    def run(body: str, data: Any) -> Any:
        probe = folder / "probe.mjs"
        probe.write_text(
            "import * as lab from './lab.mjs'; import * as line from './line.mjs'; import { readFileSync } from 'node:fs';"
            f"const data = JSON.parse(readFileSync(0, 'utf8')); console.log(JSON.stringify({body}));",
            encoding="utf-8",
        )
        done = subprocess.run([program, probe], input=json.dumps(data), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


def tensor_of_all_sizes() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(4000, generator=generator) * torch.exp2(torch.randint(-40, 20, (4000,), generator=generator))
    edges = (
        [2.0**e for e in range(-30, 18)]
        + [1.5 * 2.0**e for e in range(-30, 18)]
        + [65504.0, 65519.9, 65520.0, 464.0, 464.5, 6.9, 7.0]
    )
    return torch.cat(
        [spread.double(), torch.tensor(edges, dtype=torch.float64), torch.tensor([0.0, -0.0, math.inf, math.nan]).double()]
    )


@pytest.mark.parametrize("shift", [0, -7, 3, 16])
def test_the_shares_are_what_quantize_does(node: Any, shift: int) -> None:
    names = ["fp16", "bf16", "fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fnuz", "fp4_e2m1", "fp6_e3m2"]
    tensor = tensor_of_all_sizes()
    histogram = exponent_histogram(tensor, names)
    assert (histogram["zeros"], histogram["infinities"], histogram["nans"]) == (2, 1, 1)
    formats = RangeExplorer(histogram, formats=names).formats
    got = node(
        "data.formats.map((format) => lab.fates(data.histogram, format, data.shift))",
        {"histogram": histogram, "formats": formats, "shift": shift},
    )
    values = tensor[torch.isfinite(tensor) & (tensor != 0)] * 2.0**shift
    for name, fates in zip(names, got, strict=True):
        fmt = FORMATS[name]
        stored = quantize(values, name).double()
        zero = int((stored == 0).sum())
        if fmt.specials == "finite":
            # Overflow saturates, so it shows only as a number beyond half an ulp past the largest.
            limit = fmt.max + float(fmt.ulp(fmt.max_code)) / 2
            overflow = int((values.abs() >= limit).sum() if fmt.max_code & 1 else (values.abs() > limit).sum())
        else:
            overflow = int((~torch.isfinite(stored)).sum())
        subnormal = int(((values.abs() < fmt.smallest_normal) & (stored != 0)).sum())
        assert fates == {
            "zero": zero,
            "subnormal": subnormal,
            "normal": len(values) - zero - overflow - subnormal,
            "overflow": overflow,
        }, name


def test_short_histograms_and_tensors_are_taken() -> None:
    explorer = RangeExplorer({-3: 4, -1: 2}, shift=5)
    assert (explorer.histogram["exponents"], explorer.histogram["counts"]) == ([-3, -1], [4, 2])
    assert RangeExplorer(torch.zeros(3)).histogram["zeros"] == 3
    assert repr(explorer) == "RangeExplorer(formats=('fp16', 'bf16', 'fp8_e4m3fn', 'fp8_e5m2'), shift=5)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_the_histogram_counts_every_element(dtype: torch.dtype) -> None:
    tensor = tensor_of_all_sizes().to(dtype)
    histogram = exponent_histogram(tensor)
    assert sum(histogram["counts"]) + histogram["zeros"] + histogram["infinities"] + histogram["nans"] == tensor.numel()
    assert histogram["exponents"] == sorted(histogram["exponents"])


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: RangeExplorer([1.0]), "histogram: a histogram is a dict, not list"),
        (lambda: RangeExplorer(torch.tensor([1])), "a tensor of floats is needed, not of torch.int64"),
        (lambda: RangeExplorer({0: -1}), "the counts of a histogram are not negative"),
        (lambda: RangeExplorer({0: 1.5}), "exponents and counts are ints, not 1.5"),
        (lambda: RangeExplorer({"exponents": [1], "counts": [1, 2]}), "one entry for each exponent"),
        (lambda: RangeExplorer({0: 1}, formats=("e8m0",)), "e8m0 has no sign bit"),
        (lambda: RangeExplorer({0: 1}, shift=41), "shift: 41 is not a whole number from -40 to 40"),
        (lambda: NumberLine("x"), "'x' is not a number"),
        (lambda: NumberLine(1, center="inf"), "center: 'inf' is not a finite number"),
        (lambda: NumberLine(1, zoom="far"), "zoom: 'far' is not a number of doublings"),
        (lambda: NumberLine(1, formats=("fp99",)), "format 'fp99' is unknown"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, part: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_number_line_links_value_and_source() -> None:
    line = NumberLine("0.1", formats=("fp16",))
    assert (line.center, line.zoom, line.value) == ("0.1", -2, 0.1)
    line.value = "1/3"
    assert (line.source, line.value) == ("1/3", 1 / 3)
    line.source = "-inf"
    assert line.value == -math.inf
    line.zoom = -3.3
    assert line.zoom == -3.25
    assert repr(line) == "NumberLine(source='-inf', formats=('fp16',), center='0.1', zoom=-3.25)"
    with pytest.raises(ValueError):
        line.zoom = math.nan
    assert line.zoom == -3.25


@pytest.mark.parametrize("name", ["fp4_e2m1", "fp6_e3m2", "fp8_e4m3fn", "fp8_e5m2fnuz", "e8m0"])
@pytest.mark.parametrize("zoom", [-2, 1, 5])
def test_the_line_shows_exactly_the_numbers_in_view(node: Any, name: str, zoom: int) -> None:
    """In a view of width 2^zoom around 1, each value is one mark or lies in a block, and no mark is anything else."""
    low, width = 1 - 2.0 ** (zoom - 1), 2.0**zoom
    data = {"format": NumberLine(1, formats=(name,)).formats[0], "zoom": zoom}
    shown = node("line.laneMarks(data.format, line.makeView(line.finite(1n), data.zoom, 4096))", data)
    places = sorted({(value - low) / width * 4096 for value in FORMATS[name].values() if low <= value <= low + width})
    marks = sorted(mark["x"] for mark in shown["marks"])
    assert len(set(marks)) == len(marks)
    assert set(marks) <= set(places)
    for place in set(places) - set(marks):
        assert any(block["from"] <= place <= block["to"] for block in shown["blocks"]), place
    assert zoom > 0 or marks == places
