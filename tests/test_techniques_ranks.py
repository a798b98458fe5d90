"""Several processes as ranks: they talk to each other, results come back in order, and a failure is told at once."""

from pathlib import Path

import pytest

from labkit.techniques.ranks import on_ranks


def add_up(rank: int, ranks: int, start: int) -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor(float(start + rank))
    dist.all_reduce(value)
    return value.item() + 100 * rank


def one_fails(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    if rank == 1:
        raise ZeroDivisionError("no gradient on this one")
    dist.all_reduce(torch.zeros(1))


def names_outside(rank: int, ranks: int, size: pytest.FixtureRequest = None) -> int:  # type: ignore[assignment]
    return rank


def test_a_name_from_outside_is_told_in_one_sentence() -> None:
    with pytest.raises(RuntimeError, match="failed: NameError: name 'pytest' is not defined"):
        on_ranks(names_outside, 1)


def test_a_temporary_folder_with_a_space_in_its_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder é"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert on_ranks(add_up, 2, 0) == [1.0, 101.0]


def test_ranks_see_each_other_and_answer_in_order() -> None:
    assert on_ranks(add_up, 2, 5) == [11.0, 111.0]


def test_a_failing_rank_is_named_and_the_others_do_not_wait_for_it() -> None:
    with pytest.raises(RuntimeError, match="rank 1 failed: ZeroDivisionError: no gradient on this one"):
        on_ranks(one_fails, 2)


@pytest.mark.parametrize("ranks", [0, -1, True, 1.5])
def test_a_number_of_ranks_that_makes_no_sense_is_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match="ranks must be a whole number of at least 1, not"):
        on_ranks(add_up, ranks, 5)


@pytest.mark.parametrize("function", [lambda rank, ranks: rank, print])
def test_what_has_no_source_to_send_is_refused(function: object) -> None:
    with pytest.raises(ValueError, match="needs one written with def"):
        on_ranks(function, 1)  # type: ignore[arg-type]
