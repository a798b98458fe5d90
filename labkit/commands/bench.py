"""`labkit bench`: print the promised figures as ratios measured in one run."""

import argparse

HELP = "measure the promised figures on this machine, as ratios"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmarks to run."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="numbers, techniques, training, memory, predict, placement")


def run(arguments: argparse.Namespace) -> int:
    """Print a line a figure as it is measured; exit status 0."""
    from labkit import bench

    for name, (what, value, target) in bench.rows(arguments.names):
        print(f"{name:11} {what:72} {value:12.4g}   {target}", flush=True)
    return 0
