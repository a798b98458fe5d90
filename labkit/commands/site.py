"""`labkit site`: build the course as static pages that work offline."""

import argparse
from pathlib import Path

HELP = "build the course as static pages, widgets working without a kernel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/site"))


def run(arguments: argparse.Namespace) -> int:
    """Build the pages and name the first one; exit status 0."""
    from labkit import site

    print(site.build(arguments.folder))
    return 0
