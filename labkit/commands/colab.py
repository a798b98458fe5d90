"""`labkit colab`: write self-contained copies of the notebooks, for Colab without a repository."""

import argparse
from pathlib import Path

HELP = "write self-contained copies of the notebooks that install labkit from a wheel inside them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, and for badges the repository and tag."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/colab"))
    parser.add_argument("--repo", metavar="OWNER/NAME", help="with --tag: add a badge that opens the tagged copy in Colab")
    parser.add_argument("--tag", help="the tag whose colab/ folder holds these copies")


def run(arguments: argparse.Namespace) -> int:
    """Write the notebooks and name them; exit status 0."""
    from labkit import colab

    for path in colab.build(arguments.folder, repository=arguments.repo, tag=arguments.tag):
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
    return 0
