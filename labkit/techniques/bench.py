"""What the room of techniques promises, measured: speed of the settings, rounding of the fast products, cost of the cures.

`python -m labkit bench techniques`. `precision_rows` and `checkpointing_rows` take any workload; times compared with each
other are taken in turn, and the best of several rounds counts, so that a busy machine spoils all of them alike.
"""

import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from labkit.techniques.fast_matmul import fast_matmul
from labkit.techniques.losses import linear_cross_entropy
from labkit.techniques.optimizers import AdamW
from labkit.techniques.step import TrainingStep
from labkit.workload import Workload

Row = tuple[str, float, str]

#: Tokens per second that each setting has to reach, as a share of fp32's.
SPEED_TARGETS = {"bf16-mixed": 0.80, "16-mixed": 0.80, "bf16-true": 0.85, "16-true": 0.85}


def bench() -> list[Row]:
    """All rows, on a plain stack of torch's own transformer layers."""
    return [
        *precision_rows(_stack(hidden=64, layers=4, heads=4, sequence=64), batch_size=16),
        *checkpointing_rows(_stack(hidden=192, layers=6, heads=6, sequence=128), batch_size=8),
        *rounding_rows(),
        *optimizer_rows(),
        *loss_rows(),
    ]


def precision_rows(workload: Workload, batch_size: int, rounds: int = 12) -> list[Row]:
    """Speed of the half-width settings beside 32-true, and beside themselves on torch's stock kernels."""
    batch = workload.batch(batch_size)

    def step(precision: str, fast: bool = True) -> Callable[[], object]:
        one = TrainingStep(workload, precision=precision, device="cpu", clip=1.0, fast_matmul=fast)
        return lambda: one(batch)

    fast = best_times({name: step(name) for name in ("32-true", *SPEED_TARGETS)}, rounds)
    stock = best_times({name: step(name, fast=False) for name in SPEED_TARGETS}, rounds=1)
    rows = []
    for name, target in SPEED_TARGETS.items():
        rows.append((f"{name}: tokens/s of 32-true's", fast["32-true"] / fast[name], f"at least {target:.2f}"))
        rows.append((f"{name}: speed-up over stock kernels", stock[name] / fast[name], "at least 15 without native units"))
    return rows


def checkpointing_rows(workload: Workload, batch_size: int, rounds: int = 4) -> list[Row]:
    """What each policy keeps after the forward pass and how long its step takes, beside `none`."""
    batch = workload.batch(batch_size)
    policies = ("none", "full", "every:2", "sqrt", "selective", "offload")
    steps = {name: TrainingStep(workload, checkpointing=name, device="cpu") for name in policies}
    times = best_times({name: lambda step=step: step(batch) for name, step in steps.items()}, rounds)
    kept = {name: memory(lambda step=step: step.forward_loss(batch))[0] for name, step in steps.items()}
    rows = []
    for name in policies[1:]:
        target = "at most 1.45" if name == "full" else "for comparison"
        rows.append((f"{name}: step time of none's", times[name] / times["none"], target))
        if name != "offload":  # on a CPU the host's copies are counted with the rest
            target = "at most 0.40" if name == "full" else "for comparison"
            rows.append((f"{name}: bytes kept after forward, of none's", kept[name] / kept["none"], target))
    return rows


def rounding_rows(size: int = 512) -> list[Row]:
    """How far products are from the float64 product rounded once, in ulps of the low type: ours beside stock's."""
    rows = []
    for dtype in (torch.bfloat16, torch.float16):
        a, b = (torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (0, 1))
        exact = (a.double() @ b.double()).to(dtype)
        for kernel, enabled in (("fast", True), ("stock", False)):
            with fast_matmul(enabled=enabled):
                distance = (_ordered(a @ b) - _ordered(exact)).abs()
            name = f"{str(dtype).removeprefix('torch.')} product, {kernel} kernel"
            rows.append((f"{name}: share equal", (distance == 0).double().mean().item(), "for comparison"))
            target = "at least 0.999" if enabled else "for comparison"
            rows.append((f"{name}: share within 1 ulp", (distance <= 1).double().mean().item(), target))
            rows.append((f"{name}: largest distance in ulps", float(distance.max()), "for comparison"))
    return rows


def optimizer_rows(matrices: int = 10, size: int = 1000, rounds: int = 8) -> list[Row]:
    """Time of a step over matrices x size^2 bf16 parameters, beside torch's foreach AdamW over as many in bf16 and fp32."""

    def parameters(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
        made = [nn.Parameter(torch.randn(size, size).to(dtype)) for _ in range(matrices)]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    times = best_times(
        {
            "foreach bf16": torch.optim.AdamW(parameters(), foreach=True).step,
            "foreach fp32": torch.optim.AdamW(parameters(torch.float32), foreach=True).step,
            "stochastic": AdamW(parameters(), update="stochastic").step,
            "kahan": AdamW(parameters(), update="kahan").step,
        },
        rounds,
    )
    return [
        (f"AdamW {name}, 10M bf16 parameters: time of torch's {reference}", times[name] / times[reference], target)
        for name, target in (("stochastic", "at most 1.5"), ("kahan", "at most 2"))
        for reference in ("foreach bf16", "foreach fp32")
    ]


def loss_rows(tokens: int = 2048, hidden: int = 96, vocabulary: int = 12_500) -> list[Row]:
    """Peak bytes and time of the chunked loss beside the plain one, with the `article` preset's V / D (about 65 to 1)."""
    weight = nn.Parameter(torch.randn(vocabulary, hidden) / hidden**0.5)
    x, targets = torch.randn(tokens, hidden, requires_grad=True), torch.randint(vocabulary, (tokens,))

    def run(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def forward_backward() -> None:
            x.grad = weight.grad = None
            loss().backward()

        return forward_backward

    losses = {
        "plain": run(lambda: F.cross_entropy(F.linear(x, weight), targets)),
        "chunked": run(lambda: linear_cross_entropy(x, weight, targets)),
    }
    peak = {name: memory(forward_backward)[1] for name, forward_backward in losses.items()}
    times = best_times(losses, rounds=3)
    return [
        ("chunked cross-entropy: share of the peak saved", 1 - peak["chunked"] / peak["plain"], "at least 0.90"),
        ("chunked cross-entropy: time of the plain one", times["chunked"] / times["plain"], "about 4/3"),
    ]


def best_times(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each call: one round to warm up where there are several, then the best of `rounds`, taken in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + (rounds > 1)):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn or rounds == 1:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def memory(call: Callable[[], object]) -> tuple[int, int]:
    """Bytes allocated by `call` on the CPU: still held at its end by what it returns or leaves, and at its peak.

    Read from the profiler's record of the allocator.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        held = call()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del held
    return live, peak


def _ordered(x: Tensor) -> Tensor:
    """The codes of a 16-bit float as whole numbers in the order of its values: neighbours differ by 1."""
    code = x.view(torch.int16).int()
    return torch.where(code < 0, -(code & 0x7FFF), code)


class _Stack(nn.Module):
    def __init__(self, hidden: int, layers: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden, heads, 3 * hidden, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(hidden, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(sequence))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x, src_mask=self.mask.to(x.dtype), is_causal=True)
        return self.head(x)  # (B, T, 256)


def _stack(hidden: int, layers: int, heads: int, sequence: int) -> Workload:
    return Workload(
        model=lambda: _Stack(hidden, layers, heads, sequence),
        batch=lambda size: torch.randint(256, (size, sequence + 1)),
        loss=lambda model, ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()),
        blocks="blocks",
        name="stack of torch layers",
    )
