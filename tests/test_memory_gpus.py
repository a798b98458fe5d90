"""The table of cards: every row complete and plausible, names found as people write them."""

import pytest

from labkit.memory.gpus import as_gpu, gpus
from labkit.memory.units import UNITS


def test_there_are_enough_cards_and_each_has_its_source():
    assert len(gpus()) >= 25
    for card in gpus().values():
        assert card.source, card.name
        assert card.usable_source or card.usable_basis == "estimated", card.name


@pytest.mark.parametrize("card", gpus().values(), ids=lambda card: card.name)
def test_figures_of_a_card_agree_with_each_other(card):
    assert 0.9 * card.memory < card.usable <= card.memory
    assert card.usable_basis in ("reported", "estimated")
    assert 100 * UNITS["GB"] < card.bandwidth < 10_000 * UNITS["GB"]
    families = {"Pascal": 6, "Volta": 7, "Turing": 7, "Ampere": 8, "Ada Lovelace": 8, "Hopper": 9}
    assert card.capability[0] == families.get(card.architecture, card.capability[0])
    assert card.architecture in {*families, "Blackwell"}


@pytest.mark.parametrize(
    ("written", "name"),
    [("T4", "T4"), ("rtx3060", "RTX 3060"), ("NVIDIA GeForce RTX 3060", "RTX 3060"), ("A100", "A100 40GB"), ("h100", "H100")],
)
def test_names_are_found_as_people_write_them(written, name):
    assert as_gpu(written).name == name


def test_an_unknown_card_is_refused_with_near_names():
    with pytest.raises(ValueError, match=r"GPU 'RTX 3061' is not in data/gpus.csv; near: .*RTX 3060"):
        as_gpu("RTX 3061")
    with pytest.raises(ValueError, match="GPU 'abacus' is not in data/gpus.csv"):
        as_gpu("abacus")
