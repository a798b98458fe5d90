"""Text as bytes, split for training and validation, and the batches drawn from it.

The vocabulary is the 256 bytes, so any file is a text and nothing has to be learnt or downloaded to read it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from labkit.resources import data_file

#: The number of different bytes.
VOCABULARY = 256
#: One part in this many, the end of the text, is held out for validation.
HELD_OUT = 10

#: Token ids and, for each, the id that follows it: int64, (B, T) both.
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Text:
    """A text split in two: uint8 tensors of one dimension, the second never trained on."""

    name: str
    train: Tensor
    validation: Tensor


def load_text(source: str | Path | None = None, *, sequence: int = 1) -> Text:
    """The text called `source`, with both parts long enough for windows of `sequence` tokens.

    `source` is None or "python" for the language reference inside Python, "synthetic" for the text of
    `labkit.training.synthetic`, or the path of any file. Raises FileNotFoundError for a missing file, OSError for one that
    cannot be read, and ValueError for one that is empty or too short.
    """
    name = "python" if source is None else str(source)
    data = _read(name)
    if not data:
        raise ValueError(f"{name} is empty; a text needs at least {_needed(sequence)} bytes for sequence {sequence}")
    if len(data) < _needed(sequence):
        raise ValueError(f"{name} has {len(data)} bytes, too few for sequence {sequence}: at least {_needed(sequence)}")
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    held_out = len(data) // HELD_OUT
    return Text(Path(name).name, train=tokens[:-held_out], validation=tokens[-held_out:])


def _needed(sequence: int) -> int:
    # The smaller part must hold one window: the tokens and the one that follows the last.
    return HELD_OUT * (sequence + 1)


def _read(name: str) -> bytes:
    if name == "python":
        return language_reference()
    path = data_file("synthetic.txt") if name == "synthetic" else Path(name)
    if path.is_dir():
        raise IsADirectoryError(f"{name} is a folder; a text is one file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {name}; give a path, or one of: python, synthetic") from None
    except OSError as error:
        raise OSError(f"{name} cannot be read: {error.strerror}") from None


def language_reference() -> bytes:
    """Python's language reference, the text behind `help("while")`; it differs a little between Python versions.

    Its topics stand in an order as good as random: in the alphabet's, the end, which is held out, would be little else than
    the methods of strings and sequences.
    """
    from pydoc_data.topics import topics

    return "\n".join(topics[topic] for topic in sorted(topics, key=lambda topic: crc32(topic.encode()))).encode()


class Batches(ABC):
    """Random batches of windows of `sequence` tokens: call it with a batch size.

    It draws from a generator of its own, so the batches depend on the seed alone and not on what the model, its dropout or
    a checkpointing policy draw. Its state can be saved and taken up again.
    """

    def __init__(self, name: str, sequence: int, *, seed: int = 0) -> None:
        self.name = name
        self.sequence = sequence
        self.generator = torch.Generator().manual_seed(seed)

    @abstractmethod
    def __call__(self, size: int) -> Batch:
        """The next `size` windows to train on."""

    @abstractmethod
    def validation(self, count: int) -> Batch:
        """`count` windows that are not trained on: the same ones at every call."""

    def restart(self, seed: int) -> None:
        """Begin again, at the first batch of `seed`."""
        self.generator.manual_seed(seed)

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])


class TextBatches(Batches):
    """Windows of a text; those for validation are spread evenly over the held-out part."""

    def __init__(self, text: Text, sequence: int, *, seed: int = 0) -> None:
        super().__init__(text.name, sequence, seed=seed)
        self.text = text

    def __call__(self, size: int) -> Batch:
        starts = torch.randint(len(self.text.train) - self.sequence, (size,), generator=self.generator)
        return windows(self.text.train, starts, self.sequence)

    def validation(self, count: int) -> Batch:
        last = len(self.text.validation) - self.sequence - 1
        return windows(self.text.validation, torch.arange(count) * last // max(count - 1, 1), self.sequence)


class RandomTokens(Batches):
    """Random token ids, for a vocabulary that no text at hand has: right for memory and time, with nothing to learn."""

    def __init__(self, vocab: int, sequence: int, *, seed: int = 0) -> None:
        super().__init__("random tokens", sequence, seed=seed)
        self.vocab = vocab

    def __call__(self, size: int) -> Batch:
        return self._draw(size, self.generator)

    def validation(self, count: int) -> Batch:
        return self._draw(count, torch.Generator().manual_seed(0))

    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(self.vocab, (size, self.sequence + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def windows(data: Tensor, starts: Tensor, sequence: int) -> Batch:
    """The windows of `data` (N,) that begin at `starts` (B,): tokens and next tokens, int64 (B, T)."""
    at = starts[:, None] + torch.arange(sequence)  # (B, T)
    return data[at].long(), data[at + 1].long()
