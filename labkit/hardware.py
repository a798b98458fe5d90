"""What this machine is: the device to train on, and which dtypes its matrix units know."""

import os
import platform
from typing import Literal

import psutil
import torch

Support = Literal["native", "emulated", "absent"]

#: Dtypes that `matmul_support` reports on, by the course's names for the formats.
MATMUL_FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")

#: Lowest CUDA compute capability whose matrix units take the format (CUDA C++ Programming Guide, "Compute Capabilities"; fp64
#: tensor cores and tf32/bf16 came with 8.0, fp8 with 8.9, fp4 with 10.0).
_TENSOR_CORES = {"fp64": (8, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9), "fp4": (10, 0)}

#: CPU features that multiply the format in hardware, as `torch.cpu.get_capabilities` names them on x86 and Arm.
_CPU_UNITS = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("avx512_fp16", "amx_fp16", "fp16")}


def device() -> torch.device:
    """The device every notebook and command uses: CUDA where there is one, else the CPU; `LABKIT_DEVICE` overrides."""
    name = os.environ.get("LABKIT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def matmul_support(where: torch.device | str | None = None) -> dict[str, Support]:
    """How `where` (default: `device()`) multiplies matrices of each format of `MATMUL_FORMATS`.

    `native`: its arithmetic units take the format; `emulated`: torch computes it by another route, no faster than fp32;
    `absent`: torch has no product for it there.
    """
    where = torch.device(where) if where is not None else device()
    if where.type == "cuda":
        return _cuda_support(torch.cuda.get_device_capability(where))
    return _cpu_support()


def _cuda_support(capability: tuple[int, int]) -> dict[str, Support]:
    support: dict[str, Support] = {"fp64": "native", "fp32": "native"}
    for name in ("tf32", "bf16", "fp16", "fp8", "fp4"):
        if capability >= _TENSOR_CORES[name]:
            support[name] = "native"
        else:
            support[name] = "emulated" if name in ("bf16", "fp16") else "absent"
    return support


def _cpu_support() -> dict[str, Support]:
    features = cpu_features()
    support: dict[str, Support] = {"fp64": "native", "fp32": "native", "tf32": "absent", "fp8": "absent", "fp4": "absent"}
    for name, units in _CPU_UNITS.items():
        support[name] = "native" if any(features.get(unit) for unit in units) else "emulated"
    return {name: support[name] for name in MATMUL_FORMATS}


def cpu_features() -> dict[str, object]:
    """The CPU's features as torch reports them; empty on a torch that does not."""
    report = getattr(torch.cpu, "get_capabilities", None)
    return dict(report()) if report is not None else {}


def memory_bytes(where: torch.device | str | None = None) -> tuple[int, int]:
    """Free and total memory of `where` (default: `device()`) in bytes."""
    where = torch.device(where) if where is not None else device()
    if where.type == "cuda":
        free, total = torch.cuda.mem_get_info(where)
        return free, total
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def name(where: torch.device | str | None = None) -> str:
    """What `where` (default: `device()`) is called: the card's or the processor's name."""
    where = torch.device(where) if where is not None else device()
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return str(cpu_features().get("cpu_name") or platform.processor() or platform.machine())
