"""Placement of checkpoints: exact against every placement there is, and the promised peak against the measured one."""

import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from technique_models import Gpt, batch, loss
from torch import nn

from labkit.memory import measure
from labkit.memory.chain import BlockCost, Chain, cost
from labkit.memory.chain_profile import profile_chain
from labkit.memory.placement import all_placements, best_placement, least_peak, named_placement, plan_checkpointing
from labkit.memory.tradeoff import tradeoff
from labkit.techniques.checkpointing import apply_checkpointing


def random_chain(seed: int, total: int) -> Chain:
    """Uneven blocks: sizes in bytes of every parity, all flags, head sometimes the peak."""
    rng = random.Random(seed)
    boundaries = [rng.randint(1, 40_000_000) for _ in range(total + 1)]
    blocks = tuple(
        BlockCost(
            input=boundaries[index],
            output=boundaries[index + 1],
            saved=rng.randint(0, 400_000_000),
            saves_input=rng.random() < 0.7,
            saves_output=rng.random() < 0.3,
            forward_work=rng.randint(0, 100_000_000),
            recompute_work=rng.randint(0, 50_000_000),
            backward_work=rng.randint(0, 150_000_000),
            carried=boundaries[index + 1] + (total - index) * 3_000_000,
            forward_ms=rng.uniform(0.5, 5.0),
        )
        for index in range(total)
    )
    return Chain(blocks=blocks, base=100_000_000, head_work=rng.randint(0, 900_000_000), elsewhere=rng.randint(0, 300_000_000))


def budgets(chain: Chain) -> list[int]:
    """From the least peak to more than everything."""
    low, high = least_peak(chain), cost(chain, ()).peak
    return [low, *(int(low + (high - low) * share) for share in (0.05, 0.2, 0.5, 0.9)), max(high, low), max(high, low) + 1]


# ---- the costs --------------------------------------------------------------------------------------------------------


def uniform(total: int, *, boundary: int = 1, saved: int = 10) -> Chain:
    block = BlockCost(input=boundary, output=boundary, saved=saved, carried=boundary)
    return Chain(blocks=(block,) * total)


def test_the_textbook_chain_costs_what_the_textbook_says() -> None:
    # Without parameters, heads or workspace: everything kept is n (s + a) and one gradient; every:K is n / K inputs, and inside
    # the last segment K blocks' worth with K - 1 boundaries more.
    chain = uniform(16)
    assert cost(chain, ()).peak == 16 * 11 + 1
    for size in (1, 2, 4, 8, 16):
        assert cost(chain, named_placement(f"every:{size}", 16)).peak == 16 // size + size * 10 + (size - 1) + 1
    assert cost(chain, named_placement("full", 16)).extra_ms == 16.0


def test_the_square_root_is_the_best_equal_segment_when_blocks_keep_nothing_but_their_input() -> None:
    chain = uniform(64, boundary=10, saved=0)
    peaks = {size: cost(chain, named_placement(f"every:{size}", 64)).peak for size in (1, 2, 4, 8, 16, 32, 64)}
    assert min(peaks, key=lambda size: peaks[size]) == 8
    assert cost(chain, named_placement("sqrt", 64)).peak == peaks[8]


def test_keeping_the_last_block_costs_nothing_where_the_head_is_small() -> None:
    chain = uniform(8)
    assert cost(chain, named_placement("full", 8)).peak == cost(chain, named_placement("full", 8)[:-1]).peak


def test_a_boundary_that_the_block_before_keeps_is_stored_once() -> None:
    block = BlockCost(input=5, output=5, saved=0, saves_input=True, saves_output=True)
    assert cost(Chain(blocks=(block,) * 3), ()).peak == 4 * 5


# ---- the search ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total, count", [(1, 2), (2, 5), (3, 13), (10, 10_946)])
def test_every_placement_is_listed_once(total: int, count: int) -> None:
    listed = list(all_placements(total))
    assert len(listed) == len(set(listed)) == count


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), total=st.integers(1, 7))
def test_no_placement_at_all_is_better(seed: int, total: int) -> None:
    chain = random_chain(seed, total)
    costs = [cost(chain, placement) for placement in all_placements(total)]
    assert least_peak(chain) == min(each.peak for each in costs)
    for budget in budgets(chain):
        best = best_placement(chain, budget)
        assert best.cost.peak <= budget
        assert best.cost.extra_ms == pytest.approx(min(each.extra_ms for each in costs if each.peak <= budget))


def test_no_placement_of_twelve_blocks_is_better() -> None:
    chain = random_chain(7, 12)
    costs = [cost(chain, placement) for placement in all_placements(12)]
    for budget in budgets(chain)[:4]:
        best = best_placement(chain, budget).cost
        assert best.extra_ms == pytest.approx(min(each.extra_ms for each in costs if each.peak <= budget))


@pytest.mark.parametrize("seed", range(50))
def test_never_worse_than_a_named_policy_at_its_own_peak(seed: int) -> None:
    total = 2 + seed % 20
    chain = random_chain(seed, total)
    for policy in ("full", "sqrt", "none", *(f"every:{size}" for size in range(2, total + 1))):
        named = cost(chain, named_placement(policy, total))
        best = best_placement(chain, named.peak).cost
        assert best.peak <= named.peak and best.extra_ms <= named.extra_ms + 1e-9


def test_a_hundred_blocks_take_little_longer_than_listing_their_segments() -> None:
    # A ratio, so that a slow machine does not fail it; `labkit bench placement` has the seconds.
    small, large = random_chain(1, 25), random_chain(1, 100)
    seconds = []
    for chain in (small, large):
        began = time.perf_counter()
        best_placement(chain, budgets(chain)[3])
        seconds.append(time.perf_counter() - began)
    assert seconds[1] < 200 * seconds[0]


def test_more_memory_never_costs_time() -> None:
    curve = tradeoff(random_chain(3, 15), points=20)
    times = [each.cost.extra_ms for each in curve.best]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0.0
    for price in curve.named.values():
        assert all(each.cost.extra_ms <= price.extra_ms + 1e-9 for each in curve.best if each.cost.peak >= price.peak)


def test_a_budget_below_the_least_peak_names_it() -> None:
    chain = random_chain(0, 5)
    with pytest.raises(ValueError, match=rf"no placement fits in .*the least peak is .*\({least_peak(chain):,} B\)"):
        best_placement(chain, least_peak(chain) - 1)
    with pytest.raises(ValueError, match="selective"):
        named_placement("selective", 4)
    with pytest.raises(ValueError, match="unit"):
        best_placement(chain, "12")


def test_the_curve_draws_and_tells_its_policies() -> None:
    curve = tradeoff(random_chain(3, 8), points=10)
    figure = curve.plot()
    assert figure.axes[0].get_xlabel().startswith("peak of the step (")
    assert "full" in curve.alt and list(curve.table().index)[0] == "none"
    assert (curve.table()["best placement at this peak (ms)"] <= curve.table()["recomputation (ms)"] + 1e-9).all()


# ---- on real models -----------------------------------------------------------------------------------------------------


class Layer(nn.Sequential):
    def __init__(self, wide: int, out: int, activation: nn.Module) -> None:
        super().__init__(nn.Linear(wide, out), activation)


def uneven() -> tuple[nn.Module, list[nn.Module], torch.Tensor]:
    """Layers of very different widths; tanh keeps its output, GELU its input."""
    torch.manual_seed(0)
    widths = [32, 64, 512, 64, 256, 32, 128]
    kinds = [nn.Tanh(), nn.GELU(), nn.Tanh(), nn.GELU(), nn.Tanh(), nn.GELU()]
    layers = [Layer(a, b, kind) for a, b, kind in zip(widths, widths[1:], kinds, strict=False)]
    return nn.Sequential(*layers, nn.Linear(128, 1)), list(layers), torch.randn(512, 32)


def trainer(model: nn.Module, compute: object) -> tuple[object, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compute().backward()  # type: ignore[operator]
        optimizer.step()

    return step, optimizer


def setting(kind: str) -> tuple[nn.Module, list[nn.Module], object, torch.optim.Optimizer]:
    if kind == "uneven":
        model, blocks, x = uneven()
        return model, blocks, *trainer(model, lambda: model(x).square().mean())
    model = Gpt(depth=4, dropout=0.1 if kind == "dropout" else 0.0)
    ids = batch(32)
    return model, list(model.blocks), *trainer(model, lambda: loss(model, ids))


PLACEMENTS = [(), ((0,), (1,), (2,), (3,)), ((0, 1), (2, 3)), ((1, 2, 3),)]


@pytest.mark.parametrize("kind", ["uneven", "gpt", "dropout"])
def test_the_expected_peak_is_the_measured_one(kind: str) -> None:
    model, blocks, step, optimizer = setting(kind)
    chain = profile_chain(model, blocks, step, optimizer=optimizer, repeats=1)
    for placement in PLACEMENTS:
        with apply_checkpointing(model, blocks, [list(segment) for segment in placement]):
            report = measure(step, model=model, optimizer=optimizer, allocator=False)
        assert cost(chain, placement).peak == pytest.approx(report.peak_bytes, rel=0.01), placement


def test_a_plan_keeps_its_budget_when_it_runs() -> None:
    model, blocks, step, optimizer = setting("uneven")
    none = measure(step, model=model, optimizer=optimizer, allocator=False).peak_bytes
    low = least_peak(profile_chain(model, blocks, step, optimizer=optimizer, repeats=1))
    assert low < none
    for budget in (low, none):
        plan = plan_checkpointing(model, blocks, budget, step=step, optimizer=optimizer, repeats=1)
        report = plan.measure()
        assert report.peak_bytes <= budget
        assert plan.expected_peak == pytest.approx(report.peak_bytes, rel=0.01)
        assert "forward" not in vars(blocks[0])
    assert plan.segments == [] and "recompute nothing of 6 blocks" in repr(plan)


def test_blocks_that_are_no_chain_are_refused() -> None:
    model, blocks, step, optimizer = setting("gpt")
    with pytest.raises(ValueError, match="ran as"):
        profile_chain(model, blocks[::-1], step, optimizer=optimizer)
    with pytest.raises(ValueError, match="at least one block"):
        profile_chain(model, [], step, optimizer=optimizer)

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](x + self.layers[0](x))

    skipping = Skipping()
    step, optimizer = trainer(skipping, lambda: skipping(torch.ones(2, 4)).sum())
    with pytest.raises(ValueError, match="block 1 is not given the output of block 0"):
        profile_chain(skipping, list(skipping.layers), step, optimizer=optimizer)
