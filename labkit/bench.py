"""The figures the course promises, measured here and now: each room's `bench()` prints ratios from one run."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

#: What was measured, its value, and the target in words.
Row = tuple[str, float, str]

#: Benchmark name to the module that holds its `bench() -> list[Row]`.
BENCHES = {
    "numbers": "labkit.numbers.bench",
    "techniques": "labkit.techniques.bench",
    "training": "labkit.training.bench",
    "memory": "labkit.memory.bench",
    "predict": "labkit.memory.bench_predict",
    "placement": "labkit.memory.bench_placement",
}


def choose(names: Iterable[str]) -> list[str]:
    """The benchmarks called `names`, all when there are none; ValueError lists those that exist."""
    chosen = list(names) or list(BENCHES)
    for name in chosen:
        if name not in BENCHES:
            raise ValueError(f"benchmark {name!r} is unknown; choose from {', '.join(BENCHES)}")
    return chosen


def rows(names: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """Run the benchmarks called `names` one after another and yield (benchmark, row)."""
    for name in choose(names):
        bench: Callable[[], list[Row]] = import_module(BENCHES[name]).bench
        for row in bench():
            yield name, row
