"""Texts and batches: what is read, what is refused, and a synthetic text that is exactly what it says."""

import hashlib
import math
import runpy
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from torch import Tensor

from labkit.resources import data_file
from labkit.training import preset, synthetic, workload
from labkit.training.data import RandomTokens, TextBatches, language_reference, load_text, windows


def as_bytes(tokens: Tensor) -> bytes:
    return bytes(tokens.tolist())


def test_the_default_text_is_pythons_language_reference() -> None:
    text = load_text()
    whole = as_bytes(text.train) + as_bytes(text.validation)
    assert whole == language_reference() == load_text("python").train.numpy().tobytes() + as_bytes(text.validation)
    assert b'The "while" statement is used for repeated execution' in whole
    assert len(whole) > 300_000


def test_the_default_text_does_not_depend_on_the_order_of_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = language_reference()
    monkeypatch.setattr("pydoc_data.topics.topics", dict(reversed(topics.items())))
    assert language_reference() == expected


def test_any_file_is_a_text_byte_by_byte(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4  # not UTF-8
    (tmp_path / "any.bin").write_bytes(content)
    text = load_text(tmp_path / "any.bin", sequence=64)
    assert as_bytes(text.train) + as_bytes(text.validation) == content
    assert len(text.validation) == len(content) // 10
    assert text.name == "any.bin"


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="empty.txt is empty; a text needs at least 650 bytes for sequence 64"):
        load_text(tmp_path / "empty.txt", sequence=64)


def test_the_shortest_text_that_is_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * 650)
    batches = TextBatches(load_text(path, sequence=64), 64)
    assert batches(3)[0].shape == batches.validation(3)[0].shape == (3, 64)
    path.write_bytes(b"x" * 649)
    with pytest.raises(ValueError, match="short.txt has 649 bytes, too few for sequence 64: at least 650"):
        load_text(path, sequence=64)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file nowhere.txt; give a path, or one of: python, synthetic"):
        load_text("nowhere.txt")
    with pytest.raises(IsADirectoryError, match="is a folder; a text is one file"):
        load_text(tmp_path)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, who may read anything.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match="secret.txt cannot be read: Permission denied"):
        load_text(tmp_path / "secret.txt")


def test_targets_are_the_next_bytes() -> None:
    tokens, targets = windows(torch.arange(100, dtype=torch.uint8), torch.tensor([0, 90]), 9)
    assert tokens.tolist() == [list(range(9)), list(range(90, 99))]
    assert targets.tolist() == [list(range(1, 10)), list(range(91, 100))]
    assert tokens.dtype == targets.dtype == torch.int64


def test_batches_are_stretches_of_the_training_part_and_reach_both_ends() -> None:
    text = load_text("synthetic", sequence=16)
    text = type(text)("short", text.train[:60], text.validation)
    tokens, targets = TextBatches(text, 16)(2000)
    whole = as_bytes(text.train)
    stretches = {as_bytes(t) + as_bytes(n[-1:]) for t, n in zip(tokens, targets, strict=True)}
    assert stretches == {whole[i : i + 17] for i in range(60 - 16)}


def test_batches_depend_on_the_seed_alone() -> None:
    first, same, other = (workload("tiny", seed=seed).batch for seed in (1, 1, 2))
    drawn = first(4)
    torch.manual_seed(99)
    assert all(map(torch.equal, drawn, same(4)))
    assert not torch.equal(drawn[0], other(4)[0])
    assert not torch.equal(drawn[0], first(4)[0])
    other.restart(1)
    assert all(map(torch.equal, drawn, other(4)))


@pytest.mark.parametrize("name", ["tiny", "article"])
def test_batches_go_on_from_a_saved_state(name: str) -> None:
    batches = workload(name).batch
    batches(2)
    state = batches.state_dict()
    expected = batches(2)
    again = workload(name).batch
    again.load_state_dict(state)
    assert all(map(torch.equal, again(2), expected))


def test_validation_windows_are_held_out_spread_out_and_always_the_same() -> None:
    text = load_text(sequence=64)
    batches = TextBatches(text, 64)
    tokens, targets = batches.validation(10)
    held_out = as_bytes(text.validation)
    starts = [held_out.index(as_bytes(t)) for t in tokens]
    assert starts[0] == 0 and starts == sorted(starts) and as_bytes(targets[-1]) == held_out[-64:]
    batches(5)
    assert torch.equal(batches.validation(10)[0], tokens)
    assert batches.validation(1)[0].shape == (1, 64)


def test_a_vocabulary_that_is_not_bytes_gets_random_tokens() -> None:
    batches = workload("article").batch
    assert isinstance(batches, RandomTokens)
    tokens, targets = batches(8)
    assert tokens.shape == targets.shape == (8, 512)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert 49_000 < tokens.max() < 50_000
    assert torch.equal(batches.validation(2)[0], batches.validation(2)[0])


def test_a_large_vocabulary_can_hold_a_text_and_a_small_one_cannot() -> None:
    assert workload("article", data="synthetic", sequence=32).batch(2)[0].max() < 256
    with pytest.raises(ValueError, match="at least 256 for its bytes, not 100"):
        workload(preset("tiny", vocab=100), data="python")


def test_the_sequence_can_be_replaced() -> None:
    load = workload("tiny", sequence=200)
    assert load.batch(1)[0].shape == (1, 200)
    assert load.model()(load.batch(1)[0]).shape == (1, 200, 256)


def test_the_synthetic_file_is_what_its_generator_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = data_file("synthetic.txt").read_bytes()
    assert content == synthetic.generate()
    monkeypatch.setattr(sys, "argv", ["synthetic", str(tmp_path / "again.txt")])
    runpy.run_path(synthetic.__file__, run_name="__main__")
    assert (tmp_path / "again.txt").read_bytes() == content
    assert hashlib.sha256(content).hexdigest() in data_file("README.md").read_text()
    assert len(content) <= 300_000


def test_the_entropy_rate_follows_from_the_transition_matrix() -> None:
    """Recomputed from the definition: stationary distribution and row entropies of the chain's matrix."""
    matrix = torch.zeros(16, 16, dtype=torch.float64)
    for letter in range(16):
        for offset, p in ((0, 1 / 2), (1, 1 / 4), (2, 1 / 8), (3, 1 / 8)):
            matrix[letter, (5 * letter + 3 + offset) % 16] += p
    stationary = torch.linalg.matrix_power(matrix, 200)[0]
    rows = -torch.where(matrix > 0, matrix * matrix.clamp_min(1e-300).log(), 0).sum(1)
    assert synthetic.entropy_rate() == pytest.approx((stationary @ rows).item(), abs=1e-12)
    assert synthetic.entropy_rate() == pytest.approx(7 / 4 * math.log(2), abs=1e-12)


def test_the_synthetic_text_has_the_stated_transitions() -> None:
    content = synthetic.generate()
    pairs, before = Counter(zip(content, content[1:], strict=False)), Counter(content[:-1])
    assert len(pairs) == 16 * 4
    for letter, name in enumerate(synthetic.ALPHABET):
        for offset, p in ((0, 1 / 2), (1, 1 / 4), (2, 1 / 8), (3, 1 / 8)):
            share = pairs[name, synthetic.ALPHABET[(5 * letter + 3 + offset) % 16]] / before[name]
            assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / before[name]))


def test_the_ideal_loss_is_the_entropy_rate_up_to_luck() -> None:
    content = synthetic.generate()
    assert synthetic.ideal_loss(content) == pytest.approx(synthetic.entropy_rate(), abs=4 * 0.575 / math.sqrt(len(content)))
    assert synthetic.ideal_loss(b"ad") == pytest.approx(math.log(2))  # 5 * 0 + 3 + 0
    assert synthetic.ideal_loss(b"ag") == pytest.approx(math.log(8))  # 5 * 0 + 3 + 3


@pytest.mark.parametrize(
    ("text", "words"),
    [(b"a", "at least 2 bytes, not 1"), (b"aa", "never writes b'a' after b'a'"), (b"a!", "never writes b'!' after b'a'")],
)
def test_a_text_that_is_not_the_chains_has_no_ideal_loss(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        synthetic.ideal_loss(text)


def test_a_synthetic_text_has_at_least_one_byte() -> None:
    assert len(synthetic.generate(1)) == 1
    with pytest.raises(ValueError, match="length must be at least 1, not 0"):
        synthetic.generate(0)
