"""`labkit notebooks`: run the course's notebooks in place, write solved copies, print the course table."""

import argparse
from pathlib import Path

HELP = "run the course's notebooks, write solved copies, or print the course table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Three actions: run, solve, table."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run_parser = actions.add_parser("run", help="execute in place and store the outputs")
    run_parser.add_argument("numbers", nargs="*", metavar="NN", help="notebook numbers; all when none is given")
    run_parser.add_argument("--scale", help="ci, laptop or gpu (default: LABKIT_SCALE, else what fits the machine)")
    solve_parser = actions.add_parser("solve", help="write solved copies without outputs")
    solve_parser.add_argument("folder", type=Path, help="where the solved notebooks go")
    actions.add_parser("table", help="print the course table, as in the README")


def run(arguments: argparse.Namespace) -> int:
    """Carry out the action; exit status 0."""
    {"run": _run, "solve": _solve, "table": _table}[arguments.action](arguments)
    return 0


def _run(arguments: argparse.Namespace) -> None:
    from labkit import scale
    from labkit.exercises import notebooks

    chosen = scale.as_scale(arguments.scale) if arguments.scale else scale.current()
    for path in notebooks.numbered(arguments.numbers):
        cost = notebooks.run(path, scale=chosen.name)
        print(f"{path.name}: {cost['seconds']} s, peak {cost['peak_mb']} MB", flush=True)


def _solve(arguments: argparse.Namespace) -> None:
    import nbformat

    from labkit.exercises import notebooks

    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path in notebooks.numbered():
        target = arguments.folder / path.name
        nbformat.write(notebooks.solve(nbformat.read(path, as_version=4)), target)
        print(target)


def _table(arguments: argparse.Namespace) -> None:
    from labkit.exercises import notebooks

    print(notebooks.course_table())
