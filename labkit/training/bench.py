"""What training promises, measured: the settings beside 32-true and beside stock kernels, and our loop beside a plain one.

`python -m labkit bench training`. Times compared with each other are taken in turn and the best of several rounds counts.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.techniques.bench import SPEED_TARGETS, best_times
from labkit.techniques.fast_matmul import fast_matmul
from labkit.techniques.step import TrainingStep
from labkit.training.course import workload
from labkit.training.model import ModelConfig, preset

Row = tuple[str, float, str]

PRESET = "tiny"
BATCH_SIZE = 16


def bench(rounds: int = 20) -> list[Row]:
    """All rows, for the preset `tiny` on the CPU, the step being the one that `train` takes."""
    return [*precision_rows(rounds), *loop_rows(rounds)]


def precision_rows(rounds: int) -> list[Row]:
    """Tokens per second of each half-width setting beside 32-true's, and beside its own on torch's stock kernels.

    The third row of a setting is the stock step in steps of 32-true. The fast products are fp32 products with roundings around
    them, so no speed-up can go far beyond it: where stock kernels are less slow, there is less to gain.
    """
    # As in `train`, the fast products are put in place once and not at every step.
    with fast_matmul():
        fast = best_times({name: course_step(name) for name in ("32-true", *SPEED_TARGETS)}, rounds)
    stock = best_times({name: course_step(name, fast=False) for name in SPEED_TARGETS}, rounds=1)
    rows = []
    for name, target in SPEED_TARGETS.items():
        rows.append((f"{PRESET}, {name}: tokens/s of 32-true's", fast["32-true"] / fast[name], f"at least {target:.2f}"))
        gain = stock[name] / fast[name]
        rows.append((f"{PRESET}, {name}: speed-up over stock kernels", gain, "at least 15 without native units"))
        equal = stock[name] / fast["32-true"]
        rows.append((f"{PRESET}, {name}: the same, were it as fast as 32-true", equal, "what this CPU leaves to gain"))
    return rows


def loop_rows(rounds: int) -> list[Row]:
    """Tokens per second of our 32-true step beside the shortest loop one could write."""
    with fast_matmul():
        times = best_times({"course": course_step("32-true"), "plain": plain_step(preset(PRESET))}, rounds)
    return [(f"{PRESET}, 32-true: tokens/s of a plain GPT loop's", times["plain"] / times["course"], "at least 1")]


def course_step(precision: str, *, fast: bool = True) -> Callable[[], object]:
    """One step as `train` takes it: draw a batch, step, read the loss."""
    load = workload(PRESET)
    step = TrainingStep(load, precision=precision, device="cpu", clip=1.0, fast_matmul=fast)
    return lambda: float(step(load.batch(BATCH_SIZE)).loss)


def plain_step(config: ModelConfig) -> Callable[[], object]:
    """The same step written out, for a GPT-2-style model of the same sizes."""
    batch = workload(config).batch
    model = PlainGPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        tokens, targets = batch(BATCH_SIZE)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


class PlainGPT(nn.Module):
    """GPT-2's architecture with nothing beside it: learned positions, LayerNorm, full heads, GELU, a hidden layer of 4 D.

    Width, depth, heads, sequence and vocabulary are the config's; its full heads make it 15 % larger than `tiny`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.position = nn.Parameter(torch.randn(config.sequence, config.hidden) * 0.02)
        self.blocks = nn.Sequential(*(PlainBlock(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.size(1)]  # (B, T, D)
        return self.head(self.norm(self.blocks(x)))  # (B, T, V)


class PlainBlock(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = 4 * config.hidden
        self.heads = config.heads
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden) for _ in range(2))
        self.mix = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.feed_forward = nn.Sequential(nn.Linear(config.hidden, width), nn.GELU(), nn.Linear(width, config.hidden))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, T, d)
        x = x + self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x))  # (B, T, D)
