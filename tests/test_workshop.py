"""Kernels started together: all live while they are weighed, and a failing cell is told in its own words."""

import pytest

from labkit import workshop
from labkit.__main__ import main


def test_kernels_are_weighed_after_the_cell() -> None:
    small = workshop.open_together("import json", 2)
    (large,) = workshop.open_together("held = bytearray(b'x') * 80_000_000", 1)
    assert len(small) == 2 and all(opening.seconds > 0 for opening in small)
    assert large.own_bytes - max(opening.own_bytes for opening in small) > 60_000_000


def test_a_failing_cell_is_told() -> None:
    with pytest.raises(RuntimeError, match="the first cell failed: ZeroDivisionError: division by zero"):
        workshop.open_together("1 / 0", 1)


def test_the_first_cell_is_the_notebooks_own() -> None:
    assert 'labkit.start("04")' in workshop.first_cell("04")


@pytest.mark.parametrize(
    "arguments, sentence", [(["0"], "at least 1 learner, not 0"), (["--notebook", "77"], "'77' does not exist")]
)
def test_bad_arguments_get_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workshop", *arguments]) == 2
    assert sentence in capsys.readouterr().err
