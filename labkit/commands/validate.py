"""`labkit validate`: predictions beside published figures and beside what was measured on cards."""

import argparse
from pathlib import Path

HELP = "hold predictions against published memory figures and against records measured on cards"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which figures, and whether to write the table."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="published figures (default: all of data/published_memory.csv)")
    parser.add_argument("--write", action="store_true", help="write data/validation.csv and docs/validation.md")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and its summary; exit status 0. Raises ValueError for an unknown figure."""
    from labkit.memory import published
    from labkit.memory.calibration import records
    from labkit.progress import progress

    if arguments.write and arguments.ids:
        raise ValueError("--write needs every figure; leave the ids out")
    table = published.validate(arguments.ids, progress=lambda rows: progress(rows, label="validate"))
    print(table.drop(columns="source").to_string(index=False, float_format=lambda value: f"{value:,.2f}"))
    if table["id"].str.startswith(published.TOTALS).any():
        print("\n" + published.summary_sentence(table))
    measured = records()
    for record in measured:
        print(record.sentence())
    if arguments.write:
        _write(table, measured)
    return 0


def _write(table: object, measured: object) -> None:
    from labkit.memory import published
    from labkit.resources import data_file

    root = data_file("published_memory.csv").parent.parent
    if not (root / "docs").is_dir():
        raise ValueError(f"--write needs a checkout with a docs folder; {root} has none")
    target = Path(root)
    table.drop(columns=["source", "metric"]).to_csv(target / "data" / "validation.csv", index=False, float_format="%.4f")  # type: ignore[attr-defined]
    (target / "docs" / "validation.md").write_text(published.page(table, measured), encoding="utf-8")  # type: ignore[arg-type]
    print("written: data/validation.csv, docs/validation.md")
