"""The command line: what it prints, and one sentence with exit status 2 for what it cannot do."""

import subprocess
import sys

import pytest

from labkit.__main__ import main, parser
from labkit.commands import doctor


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "labkit", *arguments], capture_output=True, text=True)


def test_doctor_gives_a_remedy_for_every_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("OK    torch ") for line in lines)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(("OK  ", "WARN", "      → "))
        assert not line.startswith("WARN") or following.startswith("      → ")


def test_doctor_warns_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit import hardware

    monkeypatch.setattr(hardware, "memory_bytes", lambda where=None: (2**30, 4 * 2**30))
    ok, finding, remedy = doctor._memory()
    assert (ok, finding) == (False, "host memory: 1.0 GiB free of 4.0 GiB")
    assert "close other programs" in remedy


def test_doctor_warns_of_a_missing_widget_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "anywidget" else real(name))
    warnings = [finding for ok, finding, _ in doctor._widgets() if not ok]
    assert warnings == ["anywidget is not installed"]


@pytest.mark.parametrize(
    "capability, native",
    [
        ((7, 0), {"fp64", "fp32", "fp16"}),
        ((7, 5), {"fp64", "fp32", "fp16"}),
        ((8, 0), {"fp64", "fp32", "tf32", "bf16", "fp16"}),
        ((9, 0), {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}),
        ((10, 0), {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"}),
    ],
)
def test_fp4_is_native_only_from_blackwell_on(capability: tuple[int, int], native: set[str]) -> None:
    from labkit import hardware

    support = hardware._cuda_support(capability)
    assert {name for name, how in support.items() if how == "native"} == native
    assert support["bf16"] == ("native" if capability >= (8, 0) else "emulated")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["notebooks", "run", "77"], "notebook '77' does not exist; there are: 00"),
        (["notebooks", "run", "00", "--scale", "huge"], "scale 'huge' is unknown; choose one of ci, laptop, gpu"),
        (["bench", "nothing"], "benchmark 'nothing' is unknown; choose from numbers"),
        (["matrix", "--precision", "8-true"], "precision '8-true' is not one of: 64-true"),
        (["matrix", "--checkpointing", "every:0"], "every:0"),
        (["matrix", "--seeds", "0"], "seeds 0 is too few"),
        (["report", "no-such-file.csv"], "no-such-file.csv"),
    ],
)
def test_wrong_arguments_exit_2_with_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.strip().splitlines()) == 1


def test_an_unknown_command_exits_2() -> None:
    done = run("nonsense")
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_every_command_explains_itself() -> None:
    for name in ("doctor", "matrix", "bench", "notebooks", "plan", "report"):
        with pytest.raises(SystemExit) as stop:
            parser().parse_args([name, "--help"])
        assert stop.value.code == 0
