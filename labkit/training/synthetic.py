"""A text whose entropy rate is known exactly, so that a loss curve can be drawn against its floor.

Each letter follows from the one before it and a roll of an eight-sided die:

    next = (5 x letter + 3 + offset) mod 16,    offset 0, 1, 2, 3 with probability 1/2, 1/4, 1/8, 1/8

Whatever the letter, the next one is exactly as uncertain as the offset. So no model can have a lower expected loss than the
entropy of the offset, 7/4 ln 2 = 1.2130 nats per byte, and one that knows the rule has exactly that, from the first
token of a window on. Make the file again with `python -m labkit.training.synthetic data/synthetic.txt`.
"""

import math
import random
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

ALPHABET = b"abcdefghijklmnop"
#: The die: eight equally likely faces.
OFFSETS = (0, 0, 0, 0, 1, 1, 2, 3)
#: Seed and length in bytes of the file in `data/`.
SEED = 2026
LENGTH = 2**18

_PROBABILITY = {offset: Fraction(count, len(OFFSETS)) for offset, count in Counter(OFFSETS).items()}


def generate(length: int = LENGTH, seed: int = SEED) -> bytes:
    """`length` bytes of the chain; the same bytes on every machine. Raises ValueError when `length` is below 1."""
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    # getrandbits is the Mersenne Twister's own output: unlike choices, its algorithm is fixed between Python versions.
    die = random.Random(seed)
    letters = [die.getrandbits(4)]
    while len(letters) < length:
        letters.append(_next_letter(letters[-1], OFFSETS[die.getrandbits(3)]))
    return bytes(ALPHABET[letter] for letter in letters)


def entropy_rate() -> float:
    """The floor of any model's expected loss on this text, in nats per byte: the entropy of the offset, 7/4 ln 2."""
    return -sum(float(p) * math.log(p) for p in _PROBABILITY.values())


def ideal_loss(text: bytes) -> float:
    """The loss on `text` of a model that knows the rule: mean of -ln p over every byte but the first, in nats per byte.

    It differs from `entropy_rate()` by the luck of the dice in this very text, by about 0.57 / sqrt(length).
    Raises ValueError when `text` is shorter than 2 bytes or could not have come from the chain.
    """
    if len(text) < 2:
        raise ValueError(f"text must have at least 2 bytes, not {len(text)}")
    pairs = Counter(zip(text, text[1:], strict=False))
    return sum(-count * math.log(_probability(*pair)) for pair, count in pairs.items()) / (len(text) - 1)


def _next_letter(letter: int, offset: int) -> int:
    return (5 * letter + 3 + offset) % len(ALPHABET)


def _probability(before: int, after: int) -> Fraction:
    start, end = ALPHABET.find(before), ALPHABET.find(after)
    offset = (end - _next_letter(start, 0)) % len(ALPHABET)
    if start < 0 or end < 0 or offset not in _PROBABILITY:
        raise ValueError(f"the chain never writes {bytes([after])!r} after {bytes([before])!r}")
    return _PROBABILITY[offset]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(generate())
