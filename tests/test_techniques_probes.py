"""The probes, on models whose faults and figures are known beforehand."""

import math
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from labkit.techniques.probes import (
    autocast,
    autocast_lists,
    autocast_log,
    first_nonfinite,
    gradient_histogram,
    loss_gaps,
    scaler_timeline,
    update_survival,
)

HALF = torch.float16


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


# gradient_histogram


def test_the_histogram_counts_every_number_once_by_its_exponent() -> None:
    values = torch.tensor([1.0, 1.5, -1.99, 2.0, 0.75, 0.0, 2.0**-30, math.inf, math.nan, 2.0**-149])
    histogram = gradient_histogram(values)
    counts = {e: c for e, c in zip(histogram.exponents, histogram.counts, strict=True) if c}
    assert counts == {-149: 1, -30: 1, -1: 1, 0: 3, 1: 1}
    assert (histogram.zeros, histogram.nonfinite, histogram.total) == (1, 2, 10)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-(2.0**40), 2.0**40, width=32), min_size=1, max_size=60), st.integers(-20, 20))
def test_shares_are_what_the_cast_to_fp16_makes(values: list[float], scale: int) -> None:
    # Whole exponents are judged, so the values are rounded down to powers of two.
    powers = [math.copysign(2.0 ** (math.frexp(v)[1] - 1), v) if v else 0.0 for v in values]
    numbers = torch.tensor(powers, dtype=torch.float64)
    cast = (numbers * 2.0**scale).to(HALF).float().abs()
    tie = (numbers * 2.0**scale).abs() == 2.0**-25  # half of the smallest number: every larger one of its binade rounds up
    shares = gradient_histogram(numbers).shares("fp16", scale=scale)
    count = len(values)
    assert shares.infinite == pytest.approx(torch.isinf(cast).sum().item() / count)
    assert shares.zero == pytest.approx(((cast == 0) & ~tie).sum().item() / count)
    assert shares.subnormal == pytest.approx((((cast > 0) & (cast < 2.0**-14)) | tie).sum().item() / count)
    assert shares.zero + shares.subnormal + shares.normal + shares.infinite == pytest.approx(1)


def test_the_histogram_reads_the_gradients_of_a_model() -> None:
    model = mlp()
    model(torch.randn(5, 8)).square().mean().backward()
    histogram = gradient_histogram(model)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert histogram.total == gradients.numel()
    expected = ((gradients != 0) & (gradients.abs() < 2.0**-8)).float().mean().item()
    assert histogram.below(-8) == pytest.approx(expected)
    assert list(histogram.table().columns) == ["zero (%)", "subnormal (%)", "normal (%)", "infinite (%)"]


def test_a_histogram_without_gradients_or_of_an_unknown_format_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="call backward"):
        gradient_histogram(mlp())
    with pytest.raises(ValueError, match="format 'fp17' is not one of: fp32, bf16"):
        gradient_histogram(torch.ones(2)).shares("fp17")


# update_survival


def test_survival_counts_the_elements_whose_bits_changed() -> None:
    model = nn.Linear(4, 3, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    with update_survival(model) as survival, torch.no_grad():
        model.weight[0].add_(2.0**-7)  # one ulp
        model.weight[1].add_(2.0**-9)  # a quarter of one
    assert (survival.moved, survival.total) == ({"weight": 4}, {"weight": 12})
    assert survival.share == pytest.approx(1 / 3)
    assert survival.table().loc["weight", "moved (%)"] == pytest.approx(100 / 3)


def test_survival_of_a_model_without_parameters_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        update_survival(nn.ReLU())


# autocast_log and autocast_lists


def test_the_log_shows_what_ran_in_which_type_and_where() -> None:
    model = mlp()
    with autocast_log(model) as log:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(torch.randn(5, 8)), torch.randn(5, 4))
        loss.backward()
    forward = [row for row in log.rows if row.phase == "forward"]
    products = [row for row in forward if row.op in ("addmm", "mm")]
    assert [(row.module, row.output) for row in products] == [("0", "bf16"), ("2", "bf16")]
    assert all(set(row.inputs) == {"bf16"} for row in products)
    assert [row.output for row in forward if row.op == "mse_loss"] == ["fp32"]
    assert {row.module for row in log.rows if row.op == "gelu_backward"} == {"1"}
    assert {row.phase for row in log.rows} == {"forward", "backward"}
    assert log.casts >= 5  # input, two weights, two biases
    assert len(log.table()) == len(log.rows)


def test_the_log_leaves_the_numbers_and_the_hooks_alone() -> None:
    model, x = mlp(), torch.randn(5, 8)
    plain = model(x)
    with autocast_log(model):
        logged = model(x)
    assert torch.equal(plain, logged)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_lists_are_those_of_the_documentation() -> None:
    # Oracle: "Autocast Op Reference" in PyTorch's documentation of torch.amp.
    lists = autocast_lists()
    cuda = {
        "low": "addmm baddbmm bmm conv2d linear matmul mm mv prelu scaled_dot_product_attention gru_cell",
        "fp32": "acos cosh cumsum exp group_norm kl_div layer_norm log log_softmax mse_loss norm pow prod rsqrt softmax sum",
        "widest": "addcdiv addcmul atan2 bilinear dot grid_sampler index_put scatter_add tensordot",
        "refused": "binary_cross_entropy",
        "-": "cat stack quantile",
    }
    cpu = {
        "low": "addmm baddbmm bmm conv2d linear matmul mm prelu scaled_dot_product_attention",
        "fp32": "avg_pool3d binary_cross_entropy cdist mse_loss nll_loss cross_entropy_loss prod quantile trace linalg_qr",
        "widest": "cat stack index_copy",
        "-": "softmax log_softmax layer_norm sum exp pow cumsum",
    }
    for device, rules in (("cuda", cuda), ("cpu", cpu)):
        for treatment, ops in rules.items():
            assert {op: lists.loc[op, device] for op in ops.split()} == dict.fromkeys(ops.split(), treatment)


@pytest.mark.parametrize("op", ["linear", "mse_loss", "prod", "softmax", "sum", "exp", "layer_norm"])
def test_the_cpu_list_says_what_the_cpu_does(op: str) -> None:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda x: F.linear(x, x),
        "mse_loss": lambda x: F.mse_loss(x, x + 1),
        "prod": torch.prod,
        "softmax": lambda x: x.softmax(-1),
        "sum": torch.sum,
        "exp": torch.exp,
        "layer_norm": lambda x: F.layer_norm(x, (4,)),
    }
    rule = autocast_lists().loc[op, "cpu"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        from_low = calls[op](torch.ones(4, 4, dtype=torch.bfloat16)).dtype
        from_fp32 = calls[op](torch.ones(4, 4)).dtype
    low, wide = torch.bfloat16, torch.float32
    assert (from_low, from_fp32) == {"low": (low, low), "fp32": (wide, wide), "-": (low, wide)}[rule]


def test_asking_for_the_lists_leaves_autocast_as_it_was() -> None:
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cuda")
    autocast_lists()
    assert (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cuda")) == before


class RefusesItsArguments:
    """As linalg_cond does in torch 2.14, which takes no made-up text for a norm and says so with a ValueError."""

    _schema = SimpleNamespace(arguments=[])

    def __call__(self) -> None:
        raise ValueError("linalg.cond got an invalid norm type: ij,jk->ik")


def test_an_operation_that_refuses_made_up_arguments_has_no_rule_of_its_own() -> None:
    assert autocast._treatment(RefusesItsArguments(), "cuda") == "-"


# first_nonfinite: ten planted faults


class Faulty(nn.Module):
    """Two good layers with a bad step between them."""

    def __init__(self, bad: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = Step(bad)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)).to(self.last.weight.dtype)).float().mean()


class Step(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def masked_row(x: Tensor) -> Tensor:
    """A mask of -inf over a whole row: the mask is meant, the row of NaN is not."""
    return torch.softmax(x.masked_fill(torch.ones_like(x, dtype=torch.bool), -math.inf), dim=-1)


def half_mask(x: Tensor) -> Tensor:
    return torch.softmax(x.half() + torch.triu(torch.ones(8, 8))[0].half() * -1e9, dim=-1)


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str, str, str]] = {
    "a mask of -1e9 in fp16": (half_mask, "mul", "-inf", "forward"),
    "a row that is masked all over": (masked_row, "_softmax", "nan", "forward"),
    "a variance in fp16": (lambda x: (x.half() * 500).square().mean(-1, keepdim=True) + x.half(), "pow", "inf", "forward"),
    "exp of 12 in fp16": (lambda x: (x.half() * 0 + 12).exp(), "exp", "inf", "forward"),
    "division by an eps that fp16 lacks": (lambda x: x.half() / (x.half() * 0 + 1e-8), "div", "inf", "forward"),
    "an activation of 66246": (lambda x: (x * 0 + 66_246).half(), "_to_copy", "inf", "forward"),
    "a sum in fp16": (lambda x: x.half() + (x.half() * 0 + 20_000).sum(), "sum", "inf", "forward"),
    "log of zero": (lambda x: (x * 0).log(), "log", "-inf", "forward"),
    "an in-place product": (lambda x: (x.half() * 0 + 300).mul_(300), "mul_", "inf", "forward"),
    "the root of zero, in backward": (lambda x: (x * 0).sqrt(), "div", "inf", "backward"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str) -> None:
    bad, op, kind, phase = FAULTS[name]
    torch.manual_seed(0)
    model = Faulty(bad)
    with first_nonfinite(model) as watch:
        model(torch.rand(8, 8) + 0.5).backward()
    assert watch.found is not None
    assert (watch.found.module, watch.found.phase) == ("middle", phase)
    assert (watch.found.op, watch.found.kind) == (op, kind)
    assert watch.found.op in str(watch.found) and "middle" in str(watch.found)


def test_adams_eps_in_fp16_is_named_in_the_optimizer() -> None:
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with first_nonfinite(model) as watch:
        optimizer.step()
    assert watch.found is not None and watch.found.phase == "optimizer" and watch.found.kind == "nan"


def test_a_parameter_that_came_in_broken_is_named() -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight[1, 1] = math.nan
    with first_nonfinite(model) as watch:
        model(torch.randn(5, 8))
    assert watch.found is not None and watch.found.bad_parameters == ("2.weight",)
    assert "not finite already" in str(watch.found)


# first_nonfinite: five healthy runs


def _train(model: nn.Module, x: Tensor, autocast: torch.dtype | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()


def _attention() -> nn.Module:
    mask = torch.full((6, 6), -math.inf).triu(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor) -> Tensor:
            scores = x @ x.transpose(1, 2) + self.mask
            return self.layer(x, src_mask=self.mask) + scores.softmax(-1) @ x

    return Masked()


HEALTHY: dict[str, Callable[[], None]] = {
    "fp32": lambda: _train(mlp(), torch.randn(5, 8)),
    "bf16 autocast": lambda: _train(mlp(), torch.randn(5, 8), torch.bfloat16),
    "pure bf16": lambda: _train(mlp().bfloat16(), torch.randn(5, 8).bfloat16()),
    "attention with a mask of -inf": lambda: _train(_attention(), torch.randn(2, 6, 8)),
    "a recurrent network in fp64": lambda: _train(Recurrent(), torch.randn(2, 5, 8, dtype=torch.float64)),
}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_finding(name: str) -> None:
    torch.manual_seed(0)
    with first_nonfinite(nn.Identity()) as watch:
        HEALTHY[name]()
    assert watch.found is None
    assert len(watch.peaks) > 20 and {peak.phase for peak in watch.peaks} == {"forward", "backward", "optimizer"}


def test_watching_does_not_multiply_the_time_of_a_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(6)])
    x = torch.randn(512, 256)

    def step() -> float:
        start = time.perf_counter()
        model(x).square().mean().backward()
        return time.perf_counter() - start

    step()
    plain, watched = [], []
    for _ in range(6):  # in turns, so that a busy machine slows both
        plain.append(step())
        with first_nonfinite(model):
            watched.append(step())
    # The promised factor is 2; a test on a busy machine needs room, and still catches work done per element in Python.
    assert min(watched) <= 4 * min(plain)


# scaler_timeline


def test_the_timeline_records_skips_and_growth() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    with scaler_timeline(scaler) as timeline:
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 8)).square().mean()
            scaler.scale(loss * (math.inf if step == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [event.scale for event in timeline.events] == [16, 16, 32, 16, 16, 32]
    assert [event.step for event in timeline.events if event.skipped] == [2]
    assert [event.step for event in timeline.events if event.grew] == [1, 4]
    assert timeline.table()["skipped"].sum() == timeline.skipped == 1
    assert "update" not in vars(scaler)


def test_a_timeline_of_something_else_is_one_sentence() -> None:
    with pytest.raises(TypeError, match=r"needs a torch.amp.GradScaler, not SGD"):
        scaler_timeline(torch.optim.SGD(mlp().parameters(), lr=0.1))


# loss_gaps


def test_gaps_are_paired_by_seed_and_judged_by_the_spread() -> None:
    gaps = loss_gaps({"32-true": [2.0, 3.0], "bf16-true": [2.5, 3.5], "bf16-true-sr": [2.05, 3.05], "16-true": [math.nan, 3.0]})
    assert gaps.spread == pytest.approx(0.5**0.5)
    assert gaps.gap("bf16-true") == pytest.approx(0.5)
    assert gaps.closed("bf16-true-sr", of="bf16-true") == pytest.approx(0.9)
    assert math.isnan(gaps.gap("16-true"))
    assert gaps.table().loc["bf16-true", "gap to 32-true"] == pytest.approx(0.5)
    assert "diverged" in [text.get_text() for text in gaps.plot("finding").axes[0].texts]


def test_gaps_need_a_baseline_and_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="baseline '32-true' is not among the settings: bf16-true"):
        loss_gaps({"bf16-true": [1.0]})
    with pytest.raises(ValueError, match="the same seeds"):
        loss_gaps({"32-true": [1.0, 2.0], "bf16-true": [1.0]})


# the figures


def test_every_probe_draws_a_figure_with_its_finding_as_title() -> None:
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with first_nonfinite(model) as watch, autocast_log(model) as log, torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(5, 8)).square().mean()
    with scaler_timeline(scaler) as timeline, update_survival(model) as survival:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    figures = {
        "are zero in fp16": gradient_histogram(model).plot(scale=4),
        "of the weights moved": survival.plot(),
        "16-bit result": log.plot(),
        "stayed finite": watch.plot(),
        "0 of 1 steps skipped": timeline.plot(),
    }
    for title, figure in figures.items():
        assert title in figure.axes[0].get_title(loc="left") + figure.axes[0].get_title()
        figure.canvas.draw()
