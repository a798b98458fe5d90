"""The exercise framework: one file a notebook holds, for each exercise, the check, the hints, the solution and wrong answers.

In a notebook an exercise is a stub cell (tag `exercise:ID`; a function or class with only a docstring and `...` in it) and then
a cell `check("ID", stub)`. In `labkit/exercises/nbNN.py`::

    def decode(code: int) -> float:
        \"\"\"The reference solution; its source replaces the stub in the solved notebook.\"\"\"
        return ...

    def _check_decode(answer):
        for code in (0x3C00, 0x0001):
            expect(answer(code) == want, f"0x{code:04X} is ..., your function gave ...")

    def _no_hidden_bit(code: int) -> float: ...

    EXERCISES = [
        Exercise(
            id="01-decode",
            solution=decode,
            check=_check_decode,
            hints=("first nudge", "where to look", "almost the answer"),
            wrong=(Wrong(_no_hidden_bit, "forgets the hidden bit", "hidden bit"), ...),
            note="What the solution shows (one short paragraph, Markdown).",
        ),
    ]

A check raises `Refused` (through `expect` or `refuse`) with one sentence that helps; any other exception that the learner's
function raises is reported as its own message. `Wrong.message` is a part of the message that this wrong answer must get.
"""

import dis
import importlib
import inspect
import os
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

Answer = Callable[..., Any]


class Refused(Exception):
    """An answer that is not right yet; the message tells the learner why."""


def refuse(message: str) -> None:
    """Refuse the answer with `message`."""
    raise Refused(message)


def expect(condition: object, message: str) -> None:
    """Refuse the answer with `message` unless `condition` holds."""
    if not condition:
        raise Refused(message)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A plausible wrong answer, the misconception behind it, and a part of the message it must get."""

    answer: Answer
    misconception: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One exercise: everything but the stub, which stands in the notebook."""

    id: str
    solution: Answer
    check: Callable[[Answer], None]
    hints: tuple[str, str, str]
    wrong: tuple[Wrong, ...]
    note: str

    def source(self) -> str:
        """The reference solution as the text of a cell."""
        return textwrap.dedent(inspect.getsource(self.solution)).rstrip()


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found: `status` is `passed`, `refused` or `not attempted`."""

    id: str
    status: str
    message: str

    def __repr__(self) -> str:
        mark = {"passed": "✓", "refused": "✗"}.get(self.status, "○")
        return f"{mark} {self.id}: {self.message}"

    def _repr_html_(self) -> str:
        color, mark = {"passed": ("#009E73", "✓"), "refused": ("#D55E00", "✗")}.get(self.status, ("#6E6E6E", "○"))
        style = f"border-left:4px solid {color};padding:.4em .8em;margin:.2em 0"
        return f'<div role="status" style="{style}"><b>{mark} {escape(self.id)}</b> · {escape(self.message)}</div>'


def is_stub(answer: object) -> bool:
    """Whether a function (or every method of a class) has nothing but a docstring and `...` in it."""
    if inspect.isclass(answer):
        methods = [inspect.unwrap(getattr(value, "__func__", value)) for value in vars(answer).values()]
        functions = [method for method in methods if inspect.isfunction(method)]
        return all(is_stub(function) for function in functions)
    if not isinstance(answer, types.FunctionType):
        return answer is ... or answer is None
    idle = {"RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "NOP", "COPY_FREE_VARS", "NOT_TAKEN"}
    steps = list(dis.get_instructions(answer))
    returned = [step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")]
    return all(step.opname in idle for step in steps) and all(value in (None, ...) for value in returned)


def exercises_of(number: str) -> list[Exercise]:
    """The exercises of notebook `number` ("01"); ValueError where it has none."""
    try:
        module = importlib.import_module(f"labkit.exercises.nb{number}")
    except ModuleNotFoundError as error:
        if error.name != f"labkit.exercises.nb{number}":
            raise
        raise ValueError(f"notebook {number!r} has no exercises; notebooks are numbered 00 to 11") from None
    return list(module.EXERCISES)


def find(exercise_id: str) -> Exercise:
    """The exercise called `exercise_id` ("01-decode"); ValueError lists those of that notebook."""
    if not re.fullmatch(r"\d\d-[a-z0-9-]+", exercise_id):
        raise ValueError(f"exercise {exercise_id!r} is not of the form '01-name'")
    known = exercises_of(exercise_id[:2])
    for exercise in known:
        if exercise.id == exercise_id:
            return exercise
    raise ValueError(f"exercise {exercise_id!r} is unknown; there are: {', '.join(e.id for e in known)}")


def check(exercise_id: str, answer: Answer) -> Result:
    """Check `answer`; a wrong or missing one is told, never raised, so that a notebook runs on.

    With `LABKIT_STRICT=1` (solved notebooks in tests) anything but a pass raises Refused.
    """
    exercise = find(exercise_id)
    result = _judge(exercise, answer)
    if result.status != "passed" and os.environ.get("LABKIT_STRICT") == "1":
        raise Refused(repr(result))
    return result


def _judge(exercise: Exercise, answer: Answer) -> Result:
    if is_stub(answer):
        return Result(exercise.id, "not attempted", f'not attempted yet. Stuck? Run hint("{exercise.id}").')
    try:
        exercise.check(answer)
    except Refused as refusal:
        return Result(exercise.id, "refused", str(refusal))
    except Exception as error:  # the learner's own code may raise anything; that is an answer too
        where = _line_in(answer, error)
        return Result(exercise.id, "refused", f"your code raised {type(error).__name__}{where}: {error}")
    return Result(exercise.id, "passed", "correct.")


def _line_in(answer: Answer, error: Exception) -> str:
    """Where inside the learner's function `error` came from, as words; empty when it is not known."""
    code = getattr(answer, "__code__", None)
    trace = error.__traceback__
    line = None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            line = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    return "" if line is None else f" in line {line} of {answer.__name__}"


_HINTS_SHOWN: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Text:
    """Markdown that a notebook renders and a terminal prints."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


def hint(exercise_id: str, number: int | None = None) -> Text:
    """The next hint for an exercise, one more at each call; `number` (1 to 3) asks for a certain one."""
    exercise = find(exercise_id)
    if number is None:
        number = min(_HINTS_SHOWN.get(exercise_id, 0) + 1, len(exercise.hints))
        _HINTS_SHOWN[exercise_id] = number
    if not 1 <= number <= len(exercise.hints):
        raise ValueError(f"hint {number} does not exist; {exercise_id} has hints 1 to {len(exercise.hints)}")
    return Text(f"**Hint {number} of {len(exercise.hints)}.** {exercise.hints[number - 1]}")


def solution(exercise_id: str) -> Text:
    """The reference solution of an exercise and what it shows."""
    exercise = find(exercise_id)
    return Text(f"```python\n{exercise.source()}\n```\n{exercise.note}")


def all_exercises() -> Iterator[Exercise]:
    """Every exercise of the course, in order."""
    for number in range(12):
        try:
            yield from exercises_of(f"{number:02d}")
        except ValueError:
            continue
