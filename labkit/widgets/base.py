"""What every widget shares: how its JavaScript and CSS are put together, validated traits, a stable repr.

To add a widget, write three files and a class:

1. `static/NAME.js` ends in `export default { render }`. It may use every function of the shared files that the class
   names before it (`codec.js`, `dom.js`, `histogram.js`): they are joined in front of it into ONE module, because
   a notebook loads a widget from a blob, where relative imports do not work. Take names that are free in that scope.
2. `static/NAME.css` has rules that all start at `.labkit` or at your own class below it: styles go into the page's head.
   Colours come from the `--lk-*` variables of `theme.css`, so that light and dark need no rule of their own.
3. `NAME.py` has the class:

       class Gauge(LabWidget):
           _esm = script("dom.js", "gauge.js")
           _css = style("gauge.css")
           level = checked(number_between(0, 1), default=0.5)

   and a line in `labkit/widgets/__init__.py`.

`histogram.js` with `histogram.css` draws exponents over the ranges of formats for any widget (see RangeExplorer).
The root element is made by `makeRoot` of `dom.js`, traits are followed with `follow`, and `render` returns the `end` of a
`lifetime`, which undoes both. Numbers that a double cannot hold travel as strings.
A trait made by `checked` refuses bad input with the one sentence of its check and keeps its old value.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

STATIC = files("labkit.widgets") / "static"


@cache
def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def script(*names: str) -> str:
    """One self-contained ES module: the static files `names`, joined in order; the last one has the default export."""
    return "\n".join(_text(name) for name in names)


def style(*names: str) -> str:
    """The shared theme followed by the static files `names`, as one style sheet."""
    return "\n".join(_text(name) for name in ("theme.css", *names))


class InvalidValue(traitlets.TraitError, ValueError):
    """A refused value: a ValueError for the reader, a TraitError so that traitlets rolls back what it had begun."""


@contextmanager
def refused_as(name: str) -> Iterator[None]:
    """Within a cross-validator: a ValueError or TypeError becomes the refusal of the trait `name`."""
    try:
        yield
    except InvalidValue:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidValue(f"{name}: {error}") from None


class Checked(traitlets.TraitType):
    """A trait whose values go through `check`, which returns the value to keep or raises ValueError or TypeError."""

    def __init__(self, check: Callable[[Any], Any], default: Any, **metadata: Any) -> None:
        self.check = check
        super().__init__(default_value=default, **metadata)

    def validate(self, obj: Any, value: Any) -> Any:
        with refused_as(str(self.name)):
            return self.check(value)


def checked(check: Callable[[Any], Any], *, default: Any, sync: bool = True) -> Checked:
    """A trait with the check `check`, sent to the browser unless `sync` is false."""
    return Checked(check, default).tag(sync=sync) if sync else Checked(check, default)


def one_of(*allowed: str) -> Callable[[Any], str]:
    """A check that takes one of the words `allowed`."""

    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return value

    return check


def number_between(low: float, high: float, *, whole: bool = False) -> Callable[[Any], float]:
    """A check that takes a number from `low` to `high`, both included; a whole one where asked."""
    kind = "a whole number" if whole else "a number"

    def check(value: Any) -> float:
        wrong_type = isinstance(value, bool) or not isinstance(value, int if whole else (int, float))
        if wrong_type or not low <= value <= high:
            raise ValueError(f"{value!r} is not {kind} from {low:g} to {high:g}")
        return value

    return check


class LabWidget(anywidget.AnyWidget):
    """Base of the course's widgets; `_shown` names the traits that the repr tells."""

    _shown: Sequence[str] = ()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={self._repr_of(name)}" for name in self._shown)
        return f"{type(self).__name__}({parts})"

    def _repr_of(self, name: str) -> str:
        return repr(getattr(self, name))
