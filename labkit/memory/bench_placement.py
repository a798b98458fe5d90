"""The promised figures on placement, measured: optimality on random chains, seconds for 100 blocks, expected and real peaks."""

import random
import time

import torch
from torch import nn

from labkit.memory.chain import BlockCost, Chain, cost
from labkit.memory.chain_profile import profile_chain
from labkit.memory.meter import measure
from labkit.memory.placement import all_placements, best_placement, least_peak, named_placement
from labkit.techniques.checkpointing import apply_checkpointing

Row = tuple[str, float, str]


def bench() -> list[Row]:
    """Rows (what, value, target)."""
    return [*_against_policies(), *_against_everything(), *_hundred_blocks(), *_expected_peak()]


def random_chain(seed: int, total: int) -> Chain:
    """A chain of uneven blocks, sizes in bytes."""
    draw = random.Random(seed)
    edges = [draw.randint(10**6, 4 * 10**7) for _ in range(total + 1)]
    blocks = [
        BlockCost(
            input=edges[index],
            output=edges[index + 1],
            saved=draw.randint(10**6, 4 * 10**8),
            saves_input=draw.random() < 0.8,
            saves_output=draw.random() < 0.2,
            forward_work=draw.randint(0, 10**8),
            recompute_work=draw.randint(0, 5 * 10**7),
            backward_work=draw.randint(0, 15 * 10**7),
            carried=edges[index + 1] + 3 * 10**6 * (total - index),
            forward_ms=draw.uniform(0.5, 5.0),
        )
        for index in range(total)
    ]
    return Chain(blocks=tuple(blocks), base=10**8, head_work=draw.randint(0, 6 * 10**8))


def _against_policies() -> list[Row]:
    worse, saved = 0, []
    for seed in range(50):
        total = 4 + seed
        chain = random_chain(seed, total)
        for policy in ("full", "sqrt", "every:2", "every:4"):
            named = cost(chain, named_placement(policy, total))
            best = best_placement(chain, named.peak).cost
            worse += best.peak > named.peak or best.extra_ms > named.extra_ms + 1e-9
            saved.append(1 - best.extra_ms / named.extra_ms)
    share = sum(saved) / len(saved)
    return [
        ("50 random chains: named policies that beat the plan at their own peak", worse, "0"),
        ("recomputation time the plan saves against them, mean share", share, "for information"),
    ]


def _against_everything() -> list[Row]:
    wrong = 0
    for total in (6, 9, 12):
        chain = random_chain(total, total)
        costs = [cost(chain, placement) for placement in all_placements(total)]
        low = min(each.peak for each in costs)
        for share in (0.0, 0.3, 0.7):
            budget = int(low + share * (cost(chain, ()).peak - low))
            least = min(each.extra_ms for each in costs if each.peak <= budget)
            wrong += abs(best_placement(chain, budget).cost.extra_ms - least) > 1e-9
    return [("budgets where some placement of 6, 9 or 12 blocks beats the plan", wrong, "0")]


def _hundred_blocks() -> list[Row]:
    seconds = []
    for seed in range(5):
        chain = random_chain(seed, 100)
        low = least_peak(chain)
        for share in (0.1, 0.5, 0.9):
            began = time.perf_counter()
            best_placement(chain, int(low + share * (cost(chain, ()).peak - low)))
            seconds.append(time.perf_counter() - began)
    return [("100 blocks, the slowest of 15 plans (s)", max(seconds), "at most 2")]


class _Layer(nn.Sequential):
    def __init__(self, wide: int, out: int) -> None:
        super().__init__(nn.LayerNorm(wide), nn.Linear(wide, out), nn.GELU())


def _expected_peak() -> list[Row]:
    torch.manual_seed(0)
    widths = [64, 256, 1024, 128, 512, 64, 768, 256]
    layers = [_Layer(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    model, x = nn.Sequential(*layers, nn.Linear(widths[-1], 1)), torch.randn(1024, widths[0])
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    chain = profile_chain(model, layers, step, optimizer=optimizer)
    low, high = least_peak(chain), cost(chain, ()).peak
    errors, over = [], 0
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        budget = int(low + share * (high - low))
        best = best_placement(chain, budget)
        with apply_checkpointing(model, layers, [list(segment) for segment in best.placement]):
            measured = measure(step, model=model, optimizer=optimizer, allocator=False).peak_bytes
        errors.append(abs(best.cost.peak / measured - 1))
        over += measured > budget
    return [
        ("expected peak against the measured one, worst of 5 plans (%)", 100 * max(errors), "at most 1"),
        ("plans whose measured peak is over the budget", over, "0"),
        ("least peak over the peak of keeping everything, this model", low / high, "for information"),
    ]
