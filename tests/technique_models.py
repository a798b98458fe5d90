"""Small models that the tests of labkit.techniques share: independent of the course's own transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.workload import Workload

VOCABULARY, WIDTH, LENGTH = 17, 16, 12


class Block(nn.Module):
    """A pre-norm transformer block with causal attention; `calls` counts how often its forward ran."""

    def __init__(self, width: int = WIDTH, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        return x + self.down(self.dropout(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """Embedding, a chain of `Block`s, head."""

    def __init__(self, depth: int = 4, width: int = WIDTH, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def batch(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


def workload(**options: object) -> Workload:
    return Workload(model=lambda: Gpt(**options), batch=batch, loss=loss, blocks="blocks", name="test gpt")


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def same_bits(left: list[Tensor], right: list[Tensor]) -> bool:
    """Equal bit for bit; NaN equals NaN."""
    return len(left) == len(right) and all(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(left, right, strict=True)
    )
