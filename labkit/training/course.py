"""The course's transformer as one instance of `Workload`, the form that every technique and the meter take."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from labkit.training.data import VOCABULARY, Batches, RandomTokens, TextBatches, load_text
from labkit.training.model import ModelConfig, Transformer, next_token_loss, preset
from labkit.workload import Workload


def workload(
    config: str | ModelConfig = "tiny",
    *,
    data: str | Path | None = None,
    sequence: int | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.1,
) -> Workload:
    """The course's transformer as a `Workload`: a preset's name or a config, trained on `data` (see `load_text`).

    `batch(n)` gives the next n random windows of a generator seeded with `seed`. `sequence` replaces the config's. Without
    `data`, a vocabulary that is not the 256 bytes gets random tokens. Without `learning_rate`, it is 3e-3 up to a hidden size
    of 128, as in `tiny`, and 1e-3 above, where 3e-3 learns more slowly. Raises ValueError for an unknown preset, for a
    vocabulary smaller than the bytes of `data`, and for the texts that `load_text` refuses.
    """
    name, config = (config, preset(config)) if isinstance(config, str) else ("transformer", config)
    if sequence is not None:
        config = replace(config, sequence=sequence)
    if learning_rate is None:
        learning_rate = 3e-3 if config.hidden <= 128 else 1e-3
    return Workload(
        model=lambda: Transformer(config),
        batch=_batches(config, data, seed),
        loss=next_token_loss,
        optimizer=adamw(learning_rate=learning_rate, betas=betas, weight_decay=weight_decay),
        blocks="blocks",
        name=name,
    )


def adamw(
    *, learning_rate: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.1
) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """A maker of torch's AdamW, for `Workload.optimizer`: weight decay on matrices only, not on the norms' scales."""

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, betas=betas)

    return make


def _batches(config: ModelConfig, data: str | Path | None, seed: int) -> Batches:
    if data is None and config.vocab != VOCABULARY:
        return RandomTokens(config.vocab, config.sequence, seed=seed)
    if config.vocab < VOCABULARY:
        raise ValueError(f"a text needs a vocabulary of at least {VOCABULARY} for its bytes, not {config.vocab}")
    return TextBatches(load_text(data, sequence=config.sequence), config.sequence, seed=seed)
