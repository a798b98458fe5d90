"""Exercises of notebook 08: reading a matrix of runs, and deciding by it."""

from collections.abc import Callable

import pandas as pd

from labkit.exercises.core import Exercise, Wrong, expect


def best_setting(frame: pd.DataFrame, budget_bytes: int) -> tuple[str, str] | None:
    """Precision and checkpointing of the finished run with the lowest val_loss whose peak fits; None when none fits."""
    fits = frame[(frame["status"] == "ok") & (frame["peak_bytes"] <= budget_bytes)]
    if fits.empty:
        return None
    best = fits.sort_values(["val_loss", "step_ms"]).iloc[0]
    return best["precision"], best["checkpointing"]


def _runs() -> pd.DataFrame:
    columns = ["precision", "checkpointing", "status", "val_loss", "peak_bytes", "step_ms"]
    rows = [
        ("32-true", "none", "ok", 2.00, 100, 10.0),
        ("32-true", "full", "ok", 2.00, 60, 13.0),
        ("bf16-mixed", "full", "ok", 2.01, 45, 12.0),
        ("bf16-true", "none", "ok", 2.20, 50, 9.0),
        ("16-true", "none", "diverged", float("nan"), 20, 9.0),
        ("16-true", "full", "diverged", 1.00, 15, 9.0),
    ]
    return pd.DataFrame(rows, columns=columns)


_Best = Callable[[pd.DataFrame, int], tuple[str, str] | None]


def _check_best(answer: _Best) -> None:
    frame = _runs()
    got = answer(frame.copy(), 30)
    expect(got is None or got[0] != "16-true", "at 30 bytes you chose 16-true, a run that diverged: its weights are lost")
    expect(got is None, f"nothing that finished fits in 30 bytes, so the answer is None; your function gave {got!r}")
    got = answer(frame.copy(), 60)
    expect(got != ("bf16-true", "none"), "at 60 bytes bf16-true without checkpointing is faster, but its loss is higher")
    expect(got == ("32-true", "full"), f"at 60 bytes, 32-true with full just fits and has the lowest loss; you gave {got!r}")
    got = answer(frame.copy(), 200)
    expect(got != ("32-true", "full"), "two runs have the lowest loss at 200 bytes; the faster one is the better choice")
    expect(got == ("32-true", "none"), f"at 200 bytes everything fits, and 32-true with none is best; you gave {got!r}")


def _ignores_status(frame: pd.DataFrame, budget_bytes: int) -> tuple[str, str] | None:
    fits = frame[frame["peak_bytes"] <= budget_bytes].sort_values("val_loss")
    return None if fits.empty else (fits.iloc[0]["precision"], fits.iloc[0]["checkpointing"])


def _fastest(frame: pd.DataFrame, budget_bytes: int) -> tuple[str, str] | None:
    fits = frame[(frame["status"] == "ok") & (frame["peak_bytes"] <= budget_bytes)].sort_values("step_ms")
    return None if fits.empty else (fits.iloc[0]["precision"], fits.iloc[0]["checkpointing"])


def _strictly_below(frame: pd.DataFrame, budget_bytes: int) -> tuple[str, str] | None:
    return best_setting(frame, budget_bytes - 1)


def _smallest_peak(frame: pd.DataFrame, budget_bytes: int) -> tuple[str, str] | None:
    fits = frame[(frame["status"] == "ok") & (frame["peak_bytes"] <= budget_bytes)]
    fits = fits.sort_values(["val_loss", "peak_bytes"])
    return None if fits.empty else (fits.iloc[0]["precision"], fits.iloc[0]["checkpointing"])


Point = tuple[float, float]


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (memory, time) points that no other point beats or equals in both and beats in one, by rising memory."""
    front = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _check_pareto(answer: Callable[[list[Point]], list[Point]]) -> None:
    points = [(100.0, 10.0), (60.0, 13.0), (70.0, 13.0), (45.0, 15.0), (110.0, 11.0), (60.0, 14.0)]
    got = [tuple(point) for point in answer(points)]
    expect((70.0, 13.0) not in got, "(70, 13) is on your front, but (60, 13) needs less memory and no more time")
    expect((110.0, 11.0) not in got, "(110, 11) is on your front, but (100, 10) is better in both")
    expect((60.0, 13.0) in got, "(60, 13) is missing: no point has both less memory and less time")
    expect(sorted(got) == sorted(pareto_front(points)), f"the front is {pareto_front(points)}, your function gave {got}")
    expect(got == pareto_front(points), f"the front goes by rising memory, your function gave {got}")
    expect(list(answer([(1.0, 1.0), (1.0, 1.0)])) == [(1.0, 1.0)], "two equal points are one point of the front")


def _all_points(points: list[Point]) -> list[Point]:
    return sorted(set(points))


def _minimum_of_each(points: list[Point]) -> list[Point]:
    return sorted({min(points), min(points, key=lambda point: point[1])})


def _ties_stay(points: list[Point]) -> list[Point]:
    return [p for p in sorted(set(points)) if not any(q[0] < p[0] and q[1] < p[1] for q in points)]


def tells_apart(losses_a: list[float], losses_b: list[float]) -> bool:
    """Whether the means of two settings differ by more than the larger of their spreads (largest minus smallest) over seeds."""
    mean_a, mean_b = sum(losses_a) / len(losses_a), sum(losses_b) / len(losses_b)
    spread = max(max(losses) - min(losses) for losses in (losses_a, losses_b))
    return abs(mean_a - mean_b) > spread


def _check_apart(answer: Callable[[list[float], list[float]], bool]) -> None:
    expect(not answer([2.00, 2.10, 2.20], [2.05, 2.12, 2.25]), "the seeds differ by 0.20 among themselves: 0.04 tells nothing")
    expect(answer([2.00, 2.01, 2.02], [2.30, 2.31, 2.33]), "0.30 apart with a spread of 0.03 is a difference")
    expect(answer([2.30, 2.31, 2.33], [2.00, 2.01, 2.02]), "the order of the two settings must not matter")
    expect(
        not answer([2.00, 2.01, 2.02], [2.00, 2.10, 2.40]),
        "the second setting alone spreads by 0.40, more than the means differ: the larger of the two spreads counts",
    )


def _any_difference(a: list[float], b: list[float]) -> bool:
    return sum(a) / len(a) != sum(b) / len(b)


def _signed(a: list[float], b: list[float]) -> bool:
    return sum(b) / len(b) - sum(a) / len(a) > max(max(x) - min(x) for x in (a, b))


def _first_spread(a: list[float], b: list[float]) -> bool:
    return abs(sum(a) / len(a) - sum(b) / len(b)) > max(a) - min(a)


EXERCISES = [
    Exercise(
        id="08-best",
        solution=best_setting,
        check=_check_best,
        hints=(
            "First throw away what cannot be chosen: runs that diverged, and runs whose peak is over the budget.",
            "`frame[(frame['status'] == 'ok') & (frame['peak_bytes'] <= budget_bytes)]` keeps the rest; it may be empty.",
            "Sort the rest by `['val_loss', 'step_ms']` and take `.iloc[0]`.",
        ),
        wrong=(
            Wrong(_ignores_status, "a diverged run still counts", "a run that diverged"),
            Wrong(_fastest, "the fastest that fits is the best", "its loss is higher"),
            Wrong(_strictly_below, "a peak equal to the budget does not fit", "just fits"),
            Wrong(_smallest_peak, "unused memory is worth something", "the faster one is the better choice"),
        ),
        note="A budget turns a table into a decision: what fits, then what learns, then what is fast.",
    ),
    Exercise(
        id="08-pareto",
        solution=pareto_front,
        check=_check_pareto,
        hints=(
            "A point is off the front as soon as one other point is at least as good in both and better in one.",
            "Sort by memory. Walking along, a point is on the front when it is faster than every one before it.",
            "`for p in sorted(set(points)): if not front or p[1] < front[-1][1]: front.append(p)`",
        ),
        wrong=(
            Wrong(_all_points, "sorting is enough", "(60, 13) needs less memory"),
            Wrong(_minimum_of_each, "only the two extremes matter", "(60, 13) is missing"),
            Wrong(_ties_stay, "only worse in both is beaten", "(60, 13) needs less memory and no more time"),
        ),
        note="Off the front there is always a setting that costs less and gives as much: nobody should choose there.",
    ),
    Exercise(
        id="08-spread",
        solution=tells_apart,
        check=_check_apart,
        hints=(
            "Three seeds of one setting differ by chance. That spread is the ruler for every other difference.",
            "Mean of each, spread (largest minus smallest) of each; compare the distance of the means with the larger spread.",
            "`abs(mean_a - mean_b) > max(max(x) - min(x) for x in (losses_a, losses_b))`",
        ),
        wrong=(
            Wrong(_any_difference, "any difference of means is one of settings", "0.04 tells nothing"),
            Wrong(_signed, "the better one always comes first", "order of the two settings"),
            Wrong(_first_spread, "the first setting's spread is enough", "the larger of the two spreads counts"),
        ),
        note="A rough rule, and an honest one: with three seeds, do not claim what is smaller than the seeds' own spread.",
    ),
]
