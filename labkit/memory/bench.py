"""How exact the meter is and what it costs: `python -m labkit bench memory`."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.memory.meter import measure, measure_workload
from labkit.memory.tracker import Tracker
from labkit.workload import Workload

Row = tuple[str, float, str]


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def language_model(width: int = 128, blocks: int = 4, vocabulary: int = 1024, **adamw: Any) -> Workload:
    """A language model without attention, whose ops have no workspace of their own; sequences of 64 tokens."""
    return Workload(
        model=lambda: nn.Sequential(
            nn.Embedding(vocabulary, width),
            *(_Block(width) for _ in range(blocks)),
            nn.Linear(width, vocabulary, bias=False),
        ),
        batch=lambda n: (torch.randint(vocabulary, (n, 64)), torch.randint(vocabulary, (n, 64))),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, **adamw),
    )


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class _Lstm(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def bench() -> list[Row]:
    """Rows (what, value, target) from one run on this machine."""
    return [*_exactness(), *_hidden_workspace(), *_overhead()]


def _exactness() -> list[Row]:
    rows: list[Row] = []
    for name, options in {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        gap = measure_workload(language_model(**options), 8).gap_bytes
        assert gap is not None
        rows.append((f"allocator's peak less the measured one, {name} AdamW (bytes)", gap, "0"))
    return rows


def _hidden_workspace() -> list[Row]:
    torch.manual_seed(0)
    cases = {
        "LSTM": (_Lstm(64, 128), torch.randn(32, 16, 64)),
        "convolution + batch norm": (nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)), torch.randn(8, 16, 32, 32)),
        "CPU flash attention": (_Attention(64), torch.randn(4, 256, 64)),
    }
    rows: list[Row] = []
    for name, (model, x) in cases.items():
        report = measure(partial(_forward_and_backward, model, x), model=model, inputs=x)
        assert report.gap_bytes is not None
        rows.append((f"peak beyond the tensors, {name} (%)", 100 * report.gap_bytes / report.peak_bytes, "told by report.gap"))
    return rows


def _forward_and_backward(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).mean().backward()


def _overhead() -> list[Row]:
    rows: list[Row] = []
    for seconds, limit, options in ((0.04, 2.0, {}), (1.0, 1.3, {"width": 256, "vocabulary": 4096})):
        model, optimizer, step = _step_of(language_model(**options), seconds)
        plain, tracked = _times(step, partial(Tracker, model, optimizer), repeats=15 if seconds < 0.5 else 4)
        rows.append((f"tracked step over plain step, {1000 * plain:.0f} ms (ratio)", tracked / plain, f"<= {limit}"))
    return rows


def _step_of(workload: Workload, seconds: float) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A step of at least `seconds`, its batch doubled until it is."""
    torch.manual_seed(0)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    batch_size = 4
    while True:
        batch = workload.batch(batch_size)

        def step(batch: Any = batch) -> None:
            optimizer.zero_grad()
            workload.loss(model, batch).backward()
            optimizer.step()

        step()
        if min(_time(step) for _ in range(2)) >= seconds:
            return model, optimizer, step
        batch_size *= 2


def _times(step: Callable[[], None], tracker: Callable[[], Tracker], repeats: int) -> tuple[float, float]:
    """The shortest plain and the shortest tracked step, taken in turn: other load only ever makes a step longer."""
    plain, tracked = [], []
    for _ in range(repeats):
        plain.append(_time(step))
        with tracker():
            tracked.append(_time(step))
    return min(plain), min(tracked)


def _time(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
