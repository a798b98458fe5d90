"""The command line: `python -m labkit COMMAND`. Each command is a module in `labkit/commands`."""

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module

from labkit import commands


def parser() -> argparse.ArgumentParser:
    """The parser with every command that `labkit.commands` holds.

    A command module has `HELP`, `add_arguments(parser)` and `run(arguments) -> int`; its name is the command's.
    """
    root = argparse.ArgumentParser(prog="labkit", description="Measure, predict and compare training with limited memory.")
    children = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for info in pkgutil.iter_modules(commands.__path__):
        module = import_module(f"labkit.commands.{info.name}")
        child = children.add_parser(info.name, help=module.HELP, description=module.HELP)
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a ValueError or a file that cannot be read becomes one sentence on stderr and exit status 2."""
    parsed = parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (ValueError, OSError) as error:
        print(f"labkit {parsed.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
