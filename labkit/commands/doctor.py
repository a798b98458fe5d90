"""`labkit doctor`: what this machine is and supports, one line a finding, each warning with a remedy."""

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

HELP = "say what this machine is and supports, with a remedy for each warning"

GIB = 2**30

#: The largest resident memory that a notebook of the course needs at scale `laptop`, with a margin.
_NEEDED_BYTES = 3 * GIB

Line = tuple[bool, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the doctor looks at everything."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit status 0, since a warning stops nobody."""
    print_findings()
    return 0


def print_findings() -> None:
    """Print an OK or WARN line a finding, with the remedy under each warning."""
    for ok, finding, remedy in findings():
        print(f"{'OK  ' if ok else 'WARN'}  {finding}" + ("" if ok else f"\n      → {remedy}"))


def findings() -> Iterator[Line]:
    """Each finding as (fine, what was found, what to do about it)."""
    yield _python()
    yield _torch()
    yield from _devices()
    yield from _matmul()
    yield from _widgets()
    yield _memory()


def _python() -> Line:
    found = f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return sys.version_info >= (3, 11), found, "install Python 3.11 or newer, then run make with PYTHON=python3.11"


def _torch() -> Line:
    import torch

    numbers = torch.__version__.split("+")[0].split(".")
    fine = (int(numbers[0]), int(numbers[1])) >= (2, 11)
    return fine, f"torch {torch.__version__}", "install torch 2.11 or newer; requirements.lock has the tested version"


def _devices() -> Iterator[Line]:
    import torch

    from labkit import hardware

    yield True, f"CPU: {hardware.name('cpu')}, {torch.get_num_threads()} threads", ""
    if not torch.cuda.is_available():
        yield True, "no CUDA device: the course runs on the CPU, as it is made to", ""
    for index in range(torch.cuda.device_count()):
        capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
        _, total = hardware.memory_bytes(f"cuda:{index}")
        yield True, f"GPU {index}: {hardware.name(f'cuda:{index}')}, {total / GIB:.1f} GiB, compute capability {capability}", ""
    yield True, f"training device: {hardware.device()}", ""


def _matmul() -> Iterator[Line]:
    from labkit import hardware

    support = hardware.matmul_support()
    words = ", ".join(f"{name} {how}" for name, how in support.items())
    yield True, f"matrix products on {hardware.device().type}: {words}", ""
    if "emulated" in (support["bf16"], support["fp16"]):
        slow = " and ".join(name for name in ("bf16", "fp16") if support[name] == "emulated")
        if hardware.device().type == "cpu":
            remedy = "nothing to do: labkit.techniques.fast_matmul multiplies in fp32 and rounds once, as a tensor core does"
        else:
            remedy = "choose a setting in fp16 (16-mixed) on this card"
        yield False, f"no native matrix units for {slow} here: stock kernels are many times slower than fp32", remedy


def _widgets() -> Iterator[Line]:
    for package in ("jupyterlab", "ipywidgets", "anywidget"):
        if importlib.util.find_spec(package) is None:
            yield False, f"{package} is not installed", "install the lab extra: pip install '.[lab]'"
            continue
        try:
            yield True, f"{package} {version(package)}", ""
        except PackageNotFoundError:
            yield True, f"{package} (version not recorded)", ""


def _memory() -> Line:
    from labkit import hardware

    free, total = hardware.memory_bytes("cpu")
    found = f"host memory: {free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    return free >= _NEEDED_BYTES, found, f"the largest notebook needs {_NEEDED_BYTES / GIB:.0f} GiB: close other programs"
