"""`labkit workshop`: start a kernel for each learner at the same moment, and say how long it takes and what they weigh."""

import argparse

HELP = "start many kernels at once, as a workshop does, and measure seconds and memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many learners, and what they open."""
    parser.add_argument("learners", type=int, nargs="?", default=30, help="kernels started at once (default: 30)")
    parser.add_argument("--notebook", default="04", metavar="NN", help="whose first cell each kernel runs (default: 04)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; exit status 0. Raises ValueError for a notebook that does not exist."""
    import os

    from labkit.workshop import first_cell, open_together

    openings = open_together(first_cell(arguments.notebook), arguments.learners)
    seconds = sorted(opening.seconds for opening in openings)
    own = [opening.own_bytes / 1e6 for opening in openings]
    print(f"{len(openings)} kernels at once on {os.cpu_count()} cores, each through notebook {arguments.notebook}'s first cell")
    print(f"ready after {seconds[0]:.0f} s (first), {seconds[len(seconds) // 2]:.0f} s (median), {seconds[-1]:.0f} s (last)")
    print(f"memory of their own: {sum(own) / len(own):.0f} MB each, {sum(own) / 1e3:.1f} GB together")
    return 0
