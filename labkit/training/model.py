"""The course's model: a small Llama-style transformer, with its config and its presets beside it.

RMSNorm before every part, rotary positions (RoPE), a gated feed-forward network (SwiGLU), grouped-query attention, no
biases, and a head of its own that shares nothing with the embedding.

Shapes: B batch, T sequence, D hidden, H heads, K key/value heads, d = D / H, F intermediate, V vocabulary.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: `sdpa`: causal attention by flag, so torch may take its fastest kernel. `mask`: the same function with a float mask; CUDA
#: has no fused kernel for a float mask together with grouped heads and builds the whole T x T matrix.
Attention = Literal["sdpa", "mask"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The sizes of a `Transformer`; raises ValueError or TypeError where they do not fit together."""

    vocab: int = 256
    hidden: int
    intermediate: int
    layers: int
    heads: int
    #: Heads of keys and values; each serves heads / kv_heads heads of queries.
    kv_heads: int
    #: The longest sequence, in tokens.
    sequence: int
    #: Probability of dropping a value: of the embedding, of attention and of each block's two outputs.
    dropout: float = 0.0
    attention: Attention = "sdpa"
    #: RoPE's base: the slowest pair of a head turns once in about 2 pi x base tokens.
    rope_base: float = 10_000.0
    #: Added to the mean square in RMSNorm.
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "sequence"):
            _require_positive_integer(name, getattr(self, name))
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads, but {self.hidden} is not a multiple of {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, but {self.heads} is not a multiple of {self.kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"RoPE turns pairs, so hidden / heads must be even, but {self.hidden} / {self.heads} is odd")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout!r}")
        if self.attention not in ("sdpa", "mask"):
            raise ValueError(f"attention must be 'sdpa' or 'mask', not {self.attention!r}")

    @property
    def head_dim(self) -> int:
        """d, the size of one head."""
        return self.hidden // self.heads


def _require_positive_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


#: The sizes the course uses, by name.
PRESETS: dict[str, ModelConfig] = {
    # Trains in seconds on a CPU.
    "tiny": ModelConfig(hidden=128, intermediate=320, layers=4, heads=4, kv_heads=2, sequence=64),
    # The longer lessons on a laptop.
    "small": ModelConfig(hidden=192, intermediate=512, layers=6, heads=6, kv_heads=2, sequence=128),
    # The model behind the claim "12 GB hold batch 8 in fp32 and batch 16 in bf16": 179.45 million parameters.
    "article": ModelConfig(
        vocab=50_000, hidden=768, intermediate=3072, layers=12, heads=12, kv_heads=3, sequence=512, attention="mask"
    ),
    # GPT-2's sizes in this architecture: three matrices of 2048 weigh what GPT-2's two of 3072 do.
    "gpt2-like": ModelConfig(vocab=50_304, hidden=768, intermediate=2048, layers=12, heads=12, kv_heads=12, sequence=1024),
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The preset of that name with some of its fields changed: `preset("article", attention="sdpa")`.

    Raises ValueError for an unknown preset, TypeError for an unknown field.
    """
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    known = [field.name for field in fields(ModelConfig)]
    for change in changes:
        if change not in known:
            raise TypeError(f"a model config has no field {change!r}; its fields: {', '.join(known)}")
    return replace(PRESETS[name], **changes)


def at_least_fp32(x: Tensor) -> Tensor:
    """`x` in fp32, or in fp64 where it is that already: for the few sums that 16 bits are too narrow for."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    """Divides each token's vector by its root mean square and scales it by a learned weight (arXiv:1910.07467).

    Written out instead of `nn.RMSNorm`, which is one fused operation on CUDA and several on a CPU: like this the memory that
    the meter sees on a laptop is the memory a GPU needs.
    """

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_fp32(x)  # (B, T, D)
        # The sum divided, and not `mean`: the same bits, but backward then divides one number a token instead of D.
        mean_square = wide.square().sum(-1, keepdim=True) / wide.size(-1)  # (B, T, 1)
        wide = wide * torch.rsqrt(mean_square + self.epsilon)
        return wide.to(x.dtype) * self.weight  # (B, T, D)


class Positions(nn.Module):
    """What depends on the position alone, held once and shared by all blocks: RoPE's tables and, on request, the mask."""

    cos: Tensor
    sin: Tensor
    mask: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        cos, sin = rope_tables(config.sequence, config.head_dim, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)  # (T, d)
        self.register_buffer("sin", sin, persistent=False)  # (T, d)
        mask = causal_mask(config.sequence) if config.attention == "mask" else None
        self.register_buffer("mask", mask, persistent=False)  # (T, T)

    def rotate(self, x: Tensor) -> Tensor:
        """Turns each pair of `x` (B, T, H, d) by its position's angle, so that q . k depends on the distance only."""
        length = x.size(1)
        partner = x.roll(x.size(-1) // 2, dims=-1)  # (B, T, H, d): the pairs are (i, i + d/2)
        return x * self.cos[:length, None] + partner * self.sin[:length, None]


def rope_tables(sequence: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine (T, d) of the angle position x base^(-2i/d), for every position and pair i (arXiv:2104.09864).

    A pair (a, b) turns to (a cos - b sin, b cos + a sin), so the sines of the first half carry a minus. Computed in fp32
    and returned in the default dtype. Computed in bf16, positions above 256 would collapse: only 384 of the whole numbers
    below 512 can be written with 8 significant bits.
    """
    pair = torch.arange(0, head_dim, 2, dtype=torch.float32)  # (d/2,)
    position = torch.arange(sequence, dtype=torch.float32)  # (T,)
    angle = torch.outer(position, base ** (-pair / head_dim))  # (T, d/2)
    cos = torch.cat((angle.cos(), angle.cos()), dim=1)  # (T, d)
    sin = torch.cat((-angle.sin(), angle.sin()), dim=1)  # (T, d)
    return cos.to(torch.get_default_dtype()), sin.to(torch.get_default_dtype())


def causal_mask(sequence: int) -> Tensor:
    """The mask (T, T) to add to the scores: 0 up to the own position, minus infinity on the future."""
    return torch.full((sequence, sequence), float("-inf")).triu(diagonal=1)


class SelfAttention(nn.Module):
    """Causal attention in which groups of query heads share one head of keys and values (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig, positions: Positions) -> None:
        super().__init__()
        self.config = config
        self.positions = positions
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.positions.rotate(self._heads(self.query(x)))  # (B, T, H, d)
        k = self.positions.rotate(self._heads(self.key(x)))  # (B, T, K, d)
        v = self._heads(self.value(x))  # (B, T, K, d)
        y = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # (B, H, T, d)
        return self.output(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim))  # (B, T, heads * d) -> (B, T, heads, d)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dropout = self.config.dropout if self.training else 0.0
        length, mask = q.size(-2), self.positions.mask
        if mask is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=True)
        mask = mask[:length, :length]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, enable_gqa=True)


class FeedForward(nn.Module):
    """SwiGLU: one projection, through SiLU, gates another (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # (B, T, D) -> (B, T, F) -> (B, T, D)


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each added to the residual stream."""

    def __init__(self, config: ModelConfig, positions: Positions) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.epsilon)
        self.attention = SelfAttention(config, positions)
        self.feed_forward_norm = RMSNorm(config.hidden, config.epsilon)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))  # (B, T, D)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))  # (B, T, D)


class Transformer(nn.Module):
    """Token ids (B, T) to the logits of each next token (B, T, V).

    The blocks run as a plain chain, each a function of the one before it, which is what checkpointing needs.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        positions = Positions(config)
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, positions) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.epsilon)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor) -> Tensor:
        """Raises ValueError when the sequence is longer than the config's."""
        return self.head(self.features(tokens))  # (B, T, V)

    def features(self, tokens: Tensor) -> Tensor:
        """What the head reads (B, T, D): for a loss that takes the logits a chunk at a time."""
        if tokens.size(-1) > self.config.sequence:
            raise ValueError(f"a sequence of {tokens.size(-1)} tokens is longer than the model's {self.config.sequence}")
        x = self.dropout(self.embedding(tokens))  # (B, T, D)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def _initialise(self) -> None:
        # GPT-2's rule: the residual stream sums 2 outputs a layer, so those are drawn smaller to keep its variance.
        residual = 0.02 / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=residual if name.endswith(("output.weight", "down.weight")) else 0.02)


def next_token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy in nats per token of `model` on a batch of tokens and their next tokens, (B, T) each.

    The logits keep the dtype the model gave them; only the mean is taken in fp32 at least, since a mean near 5.5 in bf16
    moves in steps of 1/32.
    """
    tokens, targets = batch
    logits = model(tokens)  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # (B * T,)
    return at_least_fp32(losses).mean()


def parameter_count(model: nn.Module) -> int:
    """How many numbers `model` learns; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
