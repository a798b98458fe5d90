"""The training matrix as one page to hand in: table, figures and decision, in a single HTML file that needs nothing else.

The page works offline, in light and dark, with a keyboard and with a screen reader. Everything that comes from the CSV or from
the reader is escaped.
"""

import base64
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

import pandas as pd

from labkit import matrix_plots, plots
from labkit.experiment import CATEGORIES, KEY, curves_path, read_curves, read_matrix
from labkit.techniques.checkpointing import parse_policy
from labkit.techniques.precision import as_precision

STATUSES = ("ok", "diverged")
_NUMBERS = ("tokens_per_s", "step_ms", "peak_bytes", *CATEGORIES)
_MAY_BE_MISSING = ("train_loss", "val_loss", "recompute_overhead")
#: What distinguishes experiments that share a file; each gets its own part of the report.
_PART = KEY[:3]


def write_report(results: str | Path, out: str | Path | None = None, *, conclusion: str = "") -> Path:
    """Write the report on the matrix in the CSV `results` and return its path (default: the CSV's, ending in .html).

    `conclusion` is the reader's own decision, plain text; blank lines part its paragraphs. Raises FileNotFoundError where there
    is no CSV or no folder to write into, ValueError with one sentence for a file that is not a matrix.
    """
    results = Path(results)
    out = Path(out) if out is not None else results.with_suffix(".html")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(out.parent)!r} to write the report into")
    page = render(read_results(results), _curves(results), conclusion=conclusion)
    out.write_text(page, encoding="utf-8")
    return out


def read_results(path: str | Path) -> pd.DataFrame:
    """The rows of a matrix's CSV with every value checked; errors as `write_report`."""
    frame = read_matrix(path)
    if frame.empty:
        raise ValueError(f"{str(path)!r} holds no run yet; make some with: python -m labkit matrix --out {Path(path).name}")
    for name in (*_NUMBERS, *_MAY_BE_MISSING):
        frame[name] = _numbers(frame[name], path, may_be_missing=name in _MAY_BE_MISSING)
    for row, (status, precision, checkpointing) in enumerate(
        zip(frame["status"], frame["precision"], frame["checkpointing"], strict=True), start=2
    ):
        try:
            if status not in STATUSES:
                raise ValueError(f"status {status!r} is not one of: {', '.join(STATUSES)}")
            as_precision(precision)
            parse_policy(str(checkpointing))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{str(path)!r}, line {row}: {error}") from None
    return frame


def _numbers(column: pd.Series, path: str | Path, *, may_be_missing: bool) -> pd.Series:
    read = pd.to_numeric(column, errors="coerce")
    bad = read.isna() if not may_be_missing else read.isna() & column.notna()
    bad |= read < 0 if not may_be_missing else False
    if bad.any():
        row = int(bad.to_numpy().argmax())
        found = column.iloc[row]
        said = "nothing" if pd.isna(found) else repr(found if isinstance(found, str) else found.item())
        raise ValueError(f"{str(path)!r}, line {row + 2}: column {column.name!r} holds {said}, not a number from 0 up")
    return read


def _curves(results: Path) -> pd.DataFrame | None:
    return read_curves(results) if curves_path(results).is_file() else None


# ---- the page -----------------------------------------------------------------------------------------------------------


def render(frame: pd.DataFrame, curves: pd.DataFrame | None = None, *, conclusion: str = "") -> str:
    """The whole page, from the rows of a matrix and, where they are kept, its loss curves."""
    style = (files("labkit") / "report.css").read_text(encoding="utf-8")
    parts = [(key, rows.reset_index(drop=True)) for key, rows in frame.groupby(_PART, sort=False)]
    body = "\n".join(_part(key, rows, _of(curves, key), level=number) for number, (key, rows) in enumerate(parts, start=1))
    contents = "".join(f'<li><a href="#part-{n}">{escape(_title(key))}</a></li>' for n, (key, _) in enumerate(parts, start=1))
    listed = f'<nav aria-label="Parts"><ol>{contents}</ol></nav>' if len(parts) > 1 else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>The training matrix: what precision and checkpointing cost</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<p class="kicker">limited-memory-lab</p>
<h1>The training matrix</h1>
<p class="lead">The same small transformer, trained under every precision setting and checkpointing policy: what each needs in
memory, what it costs in time, and what it learns.</p>
</header>
{_decision(conclusion)}
{listed}
{body}
<footer>
<h2>How to read this</h2>
<p>Peak: the most memory that the second step holds, sum of all tensors; MB are 10<sup>6</sup> bytes. Loss: mean
cross-entropy in nats per token on text held back from training. Values are means over the seeds; ± is half the distance from
the smallest to the largest, and a smaller difference than that is none. Times are of the machine that ran the matrix and of no
other: a processor without units for 16-bit products gains memory from them, not speed.</p>
</footer>
</main>
</body>
</html>
"""


def _of(curves: pd.DataFrame | None, key: tuple[object, ...]) -> pd.DataFrame | None:
    if curves is None:
        return None
    mine = curves[curves[_PART].eq(list(key)).all(axis=1)]
    return None if mine.empty else mine


def _title(key: tuple[object, ...]) -> str:
    scale, device, data = key
    return f"Scale {scale}, on {device}, text {data}"


def _decision(conclusion: str) -> str:
    paragraphs = [" ".join(part.split()) for part in conclusion.replace("\r\n", "\n").split("\n\n") if part.strip()]
    if paragraphs:
        text = "".join(f"<p>{escape(part)}</p>" for part in paragraphs)
    else:
        text = (
            '<p class="soft">Not written yet. Add it with <code>--conclusion "…"</code>: the budget, the setting that you '
            "choose, the figures that decide it, and what would change your mind.</p>"
        )
    return f'<section class="decision" aria-labelledby="decision"><h2 id="decision">Decision</h2>{text}</section>'


def _part(key: tuple[object, ...], rows: pd.DataFrame, curves: pd.DataFrame | None, level: int) -> str:
    table = matrix_plots.per_setting(rows)
    figures = "\n".join(_figure(*part) for part in _pictures(rows, curves))
    findings = "".join(f"<li>{finding}</li>" for finding in _findings(table))
    seeds = rows["seed"].nunique()
    return f"""<section id="part-{level}" aria-labelledby="title-{level}">
<h2 id="title-{level}">{escape(_title(key))}</h2>
<p class="soft">{len(rows)} runs: {len(table)} settings, {seeds} {"seed" if seeds == 1 else "seeds"}.</p>
<ul class="findings">{findings}</ul>
{_table(table, level)}
{figures}
</section>"""


def _findings(table: pd.DataFrame) -> Iterator[str]:
    """What the numbers say by themselves, one sentence each."""
    choice = matrix_plots.as_good_as_the_best(table)
    if choice is None:
        yield "No setting finished all its runs."
    else:
        yield (
            f"Lowest loss: {_setting(choice.best)}, {choice.best['val_loss']:.3f} nats per token at "
            f"{choice.best['peak_bytes'] / 1e6:,.1f}\u00a0MB."
        )
        yield (
            f"Least memory for a loss that the seeds cannot tell from it: {_setting(choice.smallest)}, "
            f"{choice.smallest['peak_bytes'] / 1e6:,.1f}\u00a0MB."
        )
        finished = table[table["diverged"] == 0]
        smallest, fastest = finished.loc[finished["peak_bytes"].idxmin()], finished.loc[finished["step_ms"].idxmin()]
        yield f"Least memory of all that finish: {_setting(smallest)}, {smallest['peak_bytes'] / 1e6:,.1f}\u00a0MB."
        yield f"Fastest that finishes: {_setting(fastest)}, {fastest['step_ms']:,.1f} ms a step."
    lost = table[table["diverged"] > 0]
    if len(lost):
        yield "Diverged in at least one run: " + ", ".join(_setting(row) for _, row in lost.iterrows()) + "."


def _setting(row: pd.Series) -> str:
    return f"<b>{escape(str(row['precision']))} · {escape(str(row['checkpointing']))}</b>"


def _pictures(rows: pd.DataFrame, curves: pd.DataFrame | None) -> Iterator[tuple[matrix_plots.Picture, str]]:
    """The figures of one part and what to know for reading each."""
    yield (
        matrix_plots.pareto(rows),
        "A thin line joins the policies of one precision. Off the dashed front, another setting needs less of both.",
    )
    yield (
        matrix_plots.loss_against_memory(rows),
        "The band is the spread of the setting with the lowest loss: what lies in it, these seeds cannot tell from it.",
    )
    yield (
        matrix_plots.categories(rows),
        "Checkpointing shortens the activations alone; a narrower type for all shortens every bar.",
    )
    if curves is not None:
        policy = "none" if (curves["checkpointing"] == "none").any() else str(curves["checkpointing"].iloc[0])
        picture = matrix_plots.curves(curves, checkpointing=policy)
        yield (
            picture,
            f"Runs with checkpointing {policy}: lines are means over the seeds, bands reach from the lowest to the highest.",
        )


def _figure(picture: matrix_plots.Picture, caption: str) -> str:
    import matplotlib.pyplot as plt

    data = base64.b64encode(plots.png(picture.figure)).decode("ascii")
    plt.close(picture.figure)
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


# ---- the table ------------------------------------------------------------------------------------------------------------

#: Column of `per_setting`, header, unit, digits and scale of the numbers.
_COLUMNS = (
    ("val_loss", "validation loss", "nats per token", 3, 1.0),
    ("peak_bytes", "peak", "MB", 1, 1e6),
    ("step_ms", "step", "ms", 1, 1.0),
    ("tokens_per_s", "throughput", "tokens per second", 0, 1.0),
    ("recompute_overhead", "recomputation", "% of the step", 0, 0.01),
)


def _table(table: pd.DataFrame, level: int) -> str:
    head = "".join(f'<th scope="col">{name}<small>{unit}</small></th>' for _, name, unit, _, _ in _COLUMNS)
    largest = float(table["peak_bytes"].max())
    rows = "\n".join(_row(row, largest) for _, row in table.iterrows())
    label = f"table-{level}"
    names = '<th scope="col">precision</th><th scope="col">checkpointing</th>'
    last = '<th scope="col">finished<small>runs</small></th>'
    return f"""<div class="scroll" role="region" aria-labelledby="{label}" tabindex="0">
<table>
<caption id="{label}">Every setting: mean ± half the range over its seeds</caption>
<thead><tr>{names}{head}{last}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>"""


def _row(row: pd.Series, largest: float) -> str:
    cells = []
    for name, *_, digits, scale in _COLUMNS:
        share = f' style="--share:{row[name] / largest:.4f}" class="bar"' if name == "peak_bytes" else ""
        cells.append(f"<td{share}>{_mean(row, name, digits, scale)}</td>")
    lost, runs = int(row["diverged"]), int(row["runs"])
    state = f'<span class="lost">✗ {runs - lost} of {runs}</span>' if lost else f"✓ {runs} of {runs}"
    return (
        f'<tr><th scope="row">{escape(str(row["precision"]))}</th><td class="text">{escape(str(row["checkpointing"]))}</td>'
        f'{"".join(cells)}<td class="text">{state}</td></tr>'
    )


def _mean(row: pd.Series, name: str, digits: int, scale: float) -> str:
    if pd.isna(row[name]):
        return '<span class="soft">–</span>'
    spread = (row[f"{name}_high"] - row[f"{name}_low"]) / 2 / scale
    text = f"{row[name] / scale:,.{digits}f}"
    return f'{text} <span class="soft">± {spread:,.{digits}f}</span>' if row["runs"] > 1 and spread else text
