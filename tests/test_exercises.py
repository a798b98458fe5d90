"""The exercise framework, and every exercise of the course held to its own solution and wrong answers."""

from collections.abc import Callable
from typing import Any

import pytest

from labkit import exercises
from labkit.exercises import core

ALL = list(exercises.all_exercises())
IDS = [exercise.id for exercise in ALL]


def double(x: int) -> int:
    """Twice x."""
    ...


def strict_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_STRICT", raising=False)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> str:
    """One made-up exercise, registered as 00-example."""

    def check(answer: Callable[[int], Any]) -> None:
        core.expect(answer(2) == 4, f"twice 2 is 4, your function gave {answer(2)}")

    made = core.Exercise(
        id="00-example", solution=lambda x: 2 * x, check=check, hints=("one", "two", "three"), wrong=(), note=""
    )
    monkeypatch.setattr(core, "exercises_of", lambda number: [made])
    monkeypatch.delenv("LABKIT_STRICT", raising=False)
    core._HINTS_SHOWN.clear()
    return made.id


def test_a_stub_is_not_attempted(example: str) -> None:
    assert exercises.check(example, double).status == "not attempted"


def test_a_right_answer_passes(example: str) -> None:
    assert exercises.check(example, lambda x: x + x).status == "passed"


def test_a_wrong_answer_is_told_why(example: str) -> None:
    result = exercises.check(example, lambda x: x + 1)
    assert (result.status, result.message) == ("refused", "twice 2 is 4, your function gave 3")


def test_an_answer_that_raises_is_told_where(example: str) -> None:
    def answer(x: int) -> int:
        return x // 0

    assert exercises.check(example, answer).message.startswith("your code raised ZeroDivisionError in line 2 of answer")


def test_strict_mode_raises_on_anything_but_a_pass(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_STRICT", "1")
    with pytest.raises(exercises.Refused, match="not attempted"):
        exercises.check(example, double)


def test_hints_come_one_at_a_time_and_stay_at_the_last(example: str) -> None:
    texts = [exercises.hint(example).text for _ in range(4)]
    assert [text.split()[-1] for text in texts] == ["one", "two", "three", "three"]
    assert exercises.hint(example, 1).text.endswith("one")
    with pytest.raises(ValueError, match="hint 4 does not exist; 00-example has hints 1 to 3"):
        exercises.hint(example, 4)


def test_messages_are_escaped_in_html() -> None:
    assert "<script>" not in core.Result("00-example", "refused", "<script>alert(1)</script>")._repr_html_()


@pytest.mark.parametrize("name", ["nonsense", "1-x", "01_decode", ""])
def test_a_malformed_id_gets_one_sentence(name: str) -> None:
    with pytest.raises(ValueError, match="is not of the form '01-name'"):
        exercises.find(name)


def test_an_unknown_id_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"is unknown; there are: .*{ALL[0].id}"):
        exercises.find(f"{ALL[0].id[:2]}-nothing-like-it")


def test_ids_are_unique() -> None:
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_the_reference_solution_passes(exercise: core.Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    strict_off(monkeypatch)
    result = exercises.check(exercise.id, exercise.solution)
    assert result.status == "passed", result.message


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_every_wrong_answer_is_refused_with_its_message(exercise: core.Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    strict_off(monkeypatch)
    assert len(exercise.wrong) >= 3
    for wrong in exercise.wrong:
        result = exercises.check(exercise.id, wrong.answer)
        assert result.status == "refused", f"accepted: {wrong.misconception}"
        assert wrong.message in result.message, f"{wrong.misconception}: {result.message}"


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_an_exercise_is_complete(exercise: core.Exercise) -> None:
    assert len(exercise.hints) == 3 and all(exercise.hints)
    assert exercise.note.strip() and all(wrong.misconception.strip() for wrong in exercise.wrong)
    assert core.solution(exercise.id).text.startswith("```python\n")
