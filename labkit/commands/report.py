"""`labkit report`: the training matrix of a CSV as one HTML page with table, figures and the reader's decision."""

import argparse
from pathlib import Path

HELP = "write the training matrix of a CSV as one self-contained HTML page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The CSV, the page and the decision."""
    parser.add_argument("results", type=Path, metavar="RESULTS.csv", help="the CSV that `labkit matrix --out` keeps")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="where to write the page (default: beside the CSV)")
    parser.add_argument("--conclusion", default="", metavar="TEXT", help="your decision, to stand at the top of the page")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its path; exit status 0."""
    from labkit.report import write_report

    print(write_report(arguments.results, arguments.out, conclusion=arguments.conclusion))
    return 0
