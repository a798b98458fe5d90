"""The JavaScript codec gives the same answers as labkit.numbers, on shared vectors and on random numbers."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.numbers import FORMATS, OVERFLOWS, ROUNDINGS
from labkit.numbers.formats import SPECIALS
from labkit.widgets.base import script
from labkit.widgets.bit_viewer import spec_of

_HERE = Path(__file__).parent
_MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function (script, *arguments) -> what node prints; the codec's path comes first among the arguments."""
    program = shutil.which("node")
    if program is None:
        message = "no node on the PATH: install Node.js to test the JavaScript codec"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    codec = tmp_path_factory.mktemp("codec") / "codec.mjs"
    codec.write_text(script("codec.js"), encoding="utf-8")

    def run(name: str, *arguments: object) -> str:
        command = [program, _HERE / "browser" / name, codec, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600).stdout

    return run


def test_shared_vectors(node: Any) -> None:
    result = json.loads(node("codec_check.mjs", _HERE / "data" / "codec_vectors.json"))
    assert result["checked"] > 10_000
    assert result["failures"] == []


def test_catalogue_and_modes_are_the_same(node: Any, tmp_path: Path) -> None:
    probe = tmp_path / "probe.mjs"
    probe.write_text(
        "const c = await import(process.argv[2]);"
        "console.log(JSON.stringify([c.FORMATS, c.ROUNDINGS, c.OVERFLOWS, c.SPECIALS]));",
        encoding="utf-8",
    )
    formats, roundings, overflows, specials = json.loads(node(probe))
    assert formats == {name: spec_of(fmt) for name, fmt in FORMATS.items()}
    assert (tuple(roundings), tuple(overflows), tuple(specials)) == (ROUNDINGS, OVERFLOWS, SPECIALS)


def _split_mix(state: int) -> Iterator[int]:
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        yield z ^ (z >> 31)


def _random_numbers(count: int) -> Iterator[float]:
    random = _split_mix(2024)
    for index in range(count):
        bits = next(random)
        if index % 2:
            bits = (bits & ~(0x7FF << 52)) | ((990 + next(random) % 66) << 52)
        yield struct.unpack("<d", struct.pack("<Q", bits))[0]


@pytest.mark.parametrize("rounding", [rounding for rounding in ROUNDINGS if rounding != "stochastic"])
def test_random_fp64_numbers(node: Any, rounding: Any) -> None:
    """Every format; LABKIT_CODEC_INPUTS=1000000 is the long form of this test."""
    count = int(os.environ.get("LABKIT_CODEC_INPUTS", "2000"))
    digests = {name: hashlib.sha256() for name in FORMATS}
    for value in _random_numbers(count):
        for name, fmt in FORMATS.items():
            missing = value != value and not fmt.has_nan
            text = "refused" if missing else f"0x{fmt.encode(value, rounding=rounding):0{fmt.hex_digits}X}"
            digests[name].update(f"{text}\n".encode())
    got = json.loads(node("codec_random.mjs", count, rounding))
    assert got == {name: digest.hexdigest() for name, digest in digests.items()}


@pytest.mark.parametrize(
    "text", ["1e999999999", "-1e-999999999", "1e" + "9" * 5000, "9" * 20_000, "0x1p" + "9" * 3000, "1" * 200_000]
)
def test_hostile_text_is_answered_at_once(node: Any, tmp_path: Path, text: str) -> None:
    probe = tmp_path / "probe.mjs"
    probe.write_text(
        f"const c = await import(process.argv[2]); const text = {json.dumps(text)};"
        "let out = ''; const start = performance.now();"
        "for (const format of Object.values(c.FORMATS)) {"
        "  try { out += c.hexOf(format, c.encode(c.parseNumber(text), format)) + ' '; } catch (error) { out += 'refused '; } }"
        "console.log(JSON.stringify([out, performance.now() - start < 20000]));",
        encoding="utf-8",
    )
    codes, in_time = json.loads(node(probe))
    assert in_time
    wanted = []
    for fmt in FORMATS.values():
        try:
            wanted.append(f"0x{fmt.encode(text):0{fmt.hex_digits}X}")
        except ValueError:
            wanted.append("refused")
    assert codes.split() == wanted
