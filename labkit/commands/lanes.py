"""`labkit lanes`: run the self-contained notebooks with Colab's versions, the lowest declared ones, or the newest."""

import argparse
from pathlib import Path

HELP = "run the self-contained notebooks in other environments: colab, lowest, newest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The lanes to run."""
    parser.add_argument("names", nargs="*", metavar="LANE", help="colab, lowest, newest (default: all three)")


def run(arguments: argparse.Namespace) -> int:
    """Run the lanes; the newest one is reported and never fails the command."""
    from labkit import lanes

    status = {name: lanes.lane(name, Path("build")) for name in arguments.names or lanes.LANES}
    for name, code in status.items():
        print(f"lane {name}: {'passed' if code == 0 else 'FAILED'}")
    return int(any(code for name, code in status.items() if name != "newest"))
