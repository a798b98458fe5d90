"""The models behind published memory figures, written plainly: ViT-L/16, BERT-large of 2022, Korthikanti's layer."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VitBlock(nn.Module):
    """An encoder block as torchvision 0.15 has it: pre-norm, packed attention, dropout 0."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.0), nn.Linear(hidden, width), nn.Dropout(0.0)
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln_1(x)  # (B, T, D)
        attended, _ = self.self_attention(normed, normed, normed, need_weights=False)
        x = self.dropout(attended) + x
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """Images (B, 3, 224, 224) to logits (B, classes); the defaults are ViT-L/16 (Dosovitskiy et al. 2021)."""

    def __init__(
        self, *, classes: int = 1000, width: int = 1024, layers: int = 24, heads: int = 16, hidden: int = 4096, image: int = 224
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (image // 16) ** 2 + 1, width))
        self.layers = nn.Sequential(*(VitBlock(width, heads, hidden) for _ in range(layers)))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_proj(images).flatten(2).permute(0, 2, 1)  # (B, T - 1, D)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.ln(self.layers(x))[:, 0])


class _Softmax110(torch.autograd.Function):
    """Softmax whose backward holds its input beside its result, as PyTorch 1.10's did (derivatives.yaml passed `self`)."""

    @staticmethod
    def forward(context: Any, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, -1, dtype=torch.float32)
        context.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        scores, weights = context.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, weights, -1, scores.dtype)


def softmax_keeping_scores(scores: Tensor) -> Tensor:
    """Softmax over the last dimension in fp32, with PyTorch 1.10's appetite."""
    return _Softmax110.apply(scores)


class BertLayer(nn.Module):
    """A BERT layer as `transformers` 4.15 runs it: eager attention, dropout on probabilities and on both outputs."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.norm_1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm_2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))  # (B, H, T, d)
        scores = torch.matmul(query, key.transpose(-1, -2))  # (B, H, T, T)
        scores = scores / math.sqrt(query.shape[-1])
        scores = scores + mask
        weights = self.dropout(softmax_keeping_scores(scores))
        context = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous()
        x = self.norm_1(self.dropout(self.output(context.flatten(2))) + x)
        return self.norm_2(self.dropout(self.down(F.gelu(self.up(x)))) + x)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)


class Bert(nn.Module):
    """Token ids (B, T) to class logits (B, 2); the defaults are BERT-large (Devlin et al. 2019)."""

    def __init__(
        self,
        *,
        vocab: int = 30522,
        width: int = 1024,
        layers: int = 24,
        heads: int = 16,
        hidden: int = 4096,
        dropout: float = 0.1,
        sequence: int = 512,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width, padding_idx=0)
        self.positions = nn.Embedding(sequence, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones(tokens.shape)[:, None, None, :].to(self.norm.weight.dtype)
        mask = (1.0 - mask) * -10000.0  # (B, 1, 1, T)
        places = torch.arange(tokens.shape[1])[None, :]
        x = self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.positions(places)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


class KorthikantiLayer(nn.Module):
    """The transformer layer that Korthikanti et al. 2022 count: pre-norm, dropout on probabilities and both outputs."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.output(self._attend(self.norm_1(x))))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if self.fused:
            context = F.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        else:
            scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            context = self.dropout(F.softmax(scores, dim=-1)) @ value
        return context.transpose(1, 2).flatten(2)
