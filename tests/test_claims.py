"""What notebooks 05 and 06 say about loss, held on `tiny` over three seeds, each with a margin.

Small learning rates are where bf16 weights suffer, and there the runs are also tame enough for three seeds to decide.
"""

import copy
import dataclasses
import math
from functools import cache

import pytest
import torch
from torch import nn

from labkit.techniques.probes import gradient_histogram, loss_gaps, update_survival
from labkit.techniques.step import TrainingStep
from labkit.training import workload
from labkit.workload import Workload

SEEDS = (0, 1, 2)
STEPS = 40
LEARNING_RATE = 1e-4
SEQUENCE, BATCH = 32, 4
#: Micro-batches that a batch of half a million tokens has at this size: each loss is divided by this.
SHARE = 2**19 // (SEQUENCE * BATCH)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> object:
    """These steps are too small for two threads to help, and a busy machine makes them wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def text(seed: int, *, learning_rate: float = LEARNING_RATE, divided_by: int = 1) -> Workload:
    work = workload("tiny", seed=seed, sequence=SEQUENCE, learning_rate=learning_rate)
    loss = work.loss
    return dataclasses.replace(work, loss=lambda model, batch: loss(model, batch) / divided_by)


@cache
def started() -> nn.Module:
    """A model that has trained in fp32 for a while, where a run at a small learning rate begins."""
    work = text(0, learning_rate=3e-3)
    step = TrainingStep(work)
    for _ in range(80):
        step(work.batch(BATCH))
    return step.model


def train(precision: str, seed: int, *, divided_by: int = 1, steps: int = STEPS) -> TrainingStep:
    work = text(100 + seed, divided_by=divided_by)
    step = TrainingStep(work, precision=precision, seed=seed, model=copy.deepcopy(started()))
    for _ in range(steps):
        step(work.batch(BATCH))
    return step


@cache
def final_losses(precision: str, divided_by: int = 1) -> list[float]:
    losses = []
    for seed in SEEDS:
        step = train(precision, seed, divided_by=divided_by)
        with torch.no_grad():
            losses.append(step.forward_loss(step.workload.batch.validation(64)).item() * divided_by)
    return losses


@cache
def gaps() -> object:
    names = ("32-true", "bf16-true", "bf16-true-sr", "bf16-true-kahan", "bf16-mixed", "16-mixed")
    return loss_gaps({name: final_losses(name) for name in names})


def test_bf16_weights_lose_at_a_small_learning_rate_by_more_than_the_seeds_differ() -> None:
    assert min(gaps().paired("bf16-true")) > 0
    assert gaps().gap("bf16-true") > 2 * gaps().spread


@pytest.mark.parametrize("cure", ["bf16-true-sr", "bf16-true-kahan"])
def test_each_cure_closes_at_least_four_fifths_of_that_gap(cure: str) -> None:
    assert gaps().closed(cure, of="bf16-true") >= 0.8


@pytest.mark.parametrize("setting", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_ends_within_the_spread_of_fp32(setting: str) -> None:
    assert abs(gaps().gap(setting)) < gaps().spread


@pytest.mark.parametrize("seed", SEEDS)
def test_pure_fp16_diverges(seed: int) -> None:
    step = train("16-true", seed, steps=2)
    assert math.isnan(step.forward_loss(step.workload.batch(BATCH)).item())


@pytest.mark.parametrize("seed", SEEDS)
def test_pure_fp16_lives_longer_with_a_larger_eps_so_eps_is_the_reason(seed: int) -> None:
    work = text(seed)
    make = work.optimizer
    step = TrainingStep(dataclasses.replace(work, optimizer=lambda p: _with_eps(make(p), 1e-4)), precision="16-true", seed=seed)
    for _ in range(2):
        step(work.batch(BATCH))
    assert math.isfinite(step.forward_loss(work.batch(BATCH)).item())


def _with_eps(optimizer: torch.optim.Optimizer, eps: float) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group["eps"] = eps
    return optimizer


def test_unscaled_fp16_ends_worse_than_scaled_by_more_than_the_seeds_differ() -> None:
    compared = loss_gaps({name: final_losses(name, SHARE) for name in ("16-mixed", "16-mixed-unscaled")}, baseline="16-mixed")
    assert min(compared.paired("16-mixed-unscaled")) > 0
    assert compared.gap("16-mixed-unscaled") > 2 * compared.spread


@pytest.mark.parametrize("seed", SEEDS)
def test_unscaled_fp16_loses_the_gradients_that_lie_under_its_range(seed: int) -> None:
    zeros, small = {}, {}
    for name in ("32-true", "16-mixed", "16-mixed-unscaled"):
        histogram = gradient_histogram(train(name, seed, divided_by=SHARE, steps=1).model)
        zeros[name] = histogram.zeros / histogram.total
        small[name] = histogram.below(-24)
    assert small["32-true"] > 0.3  # there is something to lose
    assert abs(zeros["16-mixed"] - zeros["32-true"]) < 0.02
    assert zeros["16-mixed-unscaled"] > zeros["16-mixed"] + 0.3


@pytest.mark.parametrize("seed", SEEDS)
def test_bf16_weights_stand_still_where_fp32_weights_move(seed: int) -> None:
    moved = {}
    for name in ("32-true", "bf16-true"):
        step = train(name, seed, steps=1)
        with update_survival(step.model) as survival:
            step(step.workload.batch(BATCH))
        moved[name] = survival
    assert moved["bf16-true"].share < moved["32-true"].share - 0.2
    norms = [name for name in moved["bf16-true"].total if "norm" in name]
    assert norms and all(moved["bf16-true"].moved[name] == 0 for name in norms)


@pytest.mark.parametrize("seed", SEEDS)
def test_weight_decay_never_moves_a_bf16_weight(seed: int) -> None:
    weights = torch.randn(10_000, generator=torch.Generator().manual_seed(seed))
    parameter = nn.Parameter(weights.to(torch.bfloat16))
    parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.1).step()
    assert torch.equal(parameter.detach(), weights.to(torch.bfloat16))
