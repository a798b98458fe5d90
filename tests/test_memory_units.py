"""Sizes in words: strict to read, stated when written."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.memory.units import UNITS, best_unit, format_bytes, in_unit, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("12 GB", 12_000_000_000),
        ("11.5GiB", 12_348_030_976),
        (" 512 MiB ", 536_870_912),
        ("0.5 kB", 500),
        ("1 TiB", 1_099_511_627_776),
        ("7 B", 7),
        ("0 B", 0),
        ("+1 KiB", 1024),
        ("1.9 B", 1),
        (4096, 4096),
        (12e9, 12_000_000_000),
    ],
)
def test_sizes_are_read(size: str | int | float, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("12", "no unit"),
        ("12G", "may mean GB or GiB"),
        ("12k", "may mean kB or KiB"),
        ("12 gb", "did you mean GB?"),
        ("12 Mb", "did you mean MB?"),
        ("12 parsecs", "'parsecs'"),
        ("-1 GB", "cannot be negative"),
        ("", "is not a number and a unit"),
        ("GB", "is not a number and a unit"),
        ("12,5 GB", "is not a number and a unit"),
        ("nan GB", "is not a number and a unit"),
        ("1e3 MB", "is not a number and a unit"),
        ("1 GB 2", "is not a number and a unit"),
        ("١ GB", "is not a number and a unit"),
        (-1, "cannot be negative"),
        (1.5, "whole number of bytes"),
        (float("nan"), "whole number of bytes"),
        (float("inf"), "whole number of bytes"),
    ],
)
def test_a_bad_size_gets_one_sentence_that_names_it(size: str | float, words: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_bytes(size)
    message = str(error.value)
    assert words in message and repr(size).strip("'") in message and "\n" not in message


@pytest.mark.parametrize("size", [None, True, [1], 1j])
def test_a_size_of_another_type_is_a_type_error(size: object) -> None:
    with pytest.raises(TypeError, match="12 GB"):
        parse_bytes(size)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**15), st.integers(0, 999), st.sampled_from(sorted(UNITS)))
def test_reading_is_exact_arithmetic(whole: int, thousandths: int, unit: str) -> None:
    expected = (Fraction(whole) + Fraction(thousandths, 1000)) * UNITS[unit]
    assert parse_bytes(f"{whole}.{thousandths:03d} {unit}") == expected.__floor__()


@pytest.mark.parametrize(
    ("n", "options", "expected"),
    [
        (0, {}, "0 B"),
        (1023, {}, "1,023 B"),
        (1024, {}, "1.00 KiB"),
        (12_348_030_976, {}, "11.50 GiB"),
        (12e9, {"binary": False}, "12.00 GB"),
        (12e9, {"unit": "MB", "digits": 0}, "12,000 MB"),
        (-(2**20), {}, "-1.00 MiB"),
    ],
)
def test_sizes_are_written_with_their_unit(n: float, options: dict, expected: str) -> None:
    assert format_bytes(n, **options) == expected


def test_one_unit_serves_a_whole_table() -> None:
    assert best_unit([1, 2**21, 2**31]) == "GiB"
    assert best_unit([5_000, 7], binary=False) == "kB"
    assert best_unit([]) == "B"


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ValueError, match="unknown unit 'gigs'"):
        in_unit(1, "gigs")
