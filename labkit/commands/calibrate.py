"""`labkit calibrate`: run a list of configurations on this machine and record predicted beside measured memory."""

import argparse
from dataclasses import replace
from pathlib import Path

HELP = "measure a list of configurations on this machine's device and record them beside their predictions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Device, preset, batches and where the record goes."""
    parser.add_argument("--device", help="cuda or cpu (default: LABKIT_DEVICE, else cuda where there is one)")
    parser.add_argument("--preset", help="preset of the course's model (default: small on cuda, tiny on cpu)")
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 8], metavar="N", help="batch sizes (default: 4 8)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="the record (default: under data/measured/)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write the record; exit status 0."""
    from labkit import hardware
    from labkit.memory.calibration import calibrate, default_path
    from labkit.progress import progress
    from labkit.training import preset, workload

    device = arguments.device or hardware.device().type
    name = arguments.preset or ("small" if device == "cuda" else "tiny")
    workloads = {
        attention: replace(workload(preset(name, attention=attention)), name=f"{name} ({attention})")
        for attention in ("sdpa", "mask")
    }
    record = calibrate(
        workloads, batches=arguments.batches, device=device, progress=lambda cases: progress(cases, label="calibrate")
    )
    target = arguments.out or default_path(record)
    record.save(target)
    print(record.frame().to_string(index=False))
    print(f"\n{record.sentence()}\nwritten: {target}")
    return 0
