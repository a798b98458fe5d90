"""`labkit matrix`: train under every precision setting and checkpointing policy and print what each costs."""

import argparse
from pathlib import Path

HELP = "train the small transformer under every precision and checkpointing setting and print what each costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Scale, settings, policies, seeds and the CSV to resume from."""
    parser.add_argument("--scale", help="ci, laptop or gpu (default: LABKIT_SCALE, else what fits the machine)")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="keep the rows here; those there are not run again")
    parser.add_argument("--precision", nargs="+", metavar="NAME", help="precision settings (default: six of them)")
    parser.add_argument("--checkpointing", nargs="+", metavar="POLICY", help="checkpointing policies (default: four of them)")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: the scale's)")
    parser.add_argument("--data", default="python", metavar="TEXT", help="python, synthetic, or the path of a text file")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table; exit status 0."""
    from labkit import experiment

    frame = experiment.matrix(
        arguments.precision or experiment.PRECISIONS,
        arguments.checkpointing or experiment.CHECKPOINTINGS,
        arguments.seeds,
        arguments.scale,
        out=arguments.out,
        data=arguments.data,
    )
    table = experiment.summary(frame)
    print(table.to_string(index=False, float_format=lambda value: f"{value:,.3f}"))
    return 0
