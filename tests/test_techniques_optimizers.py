"""AdamW's twins: torch's bits in fp32, unbiased rounding, nothing lost under Kahan, exact resumption."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from labkit.techniques.optimizers import AdamW, _noise, add_compensated_, copy_stochastic_, like

OPTIONS = [{}, {"weight_decay": 0.3, "betas": (0.8, 0.95), "lr": 3e-2}, {"maximize": True}, {"eps": 1e-3}]


def parameters(dtype: torch.dtype, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 5), (3,), (), (2, 3, 4)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("update", ["plain", "stochastic", "kahan"])
def test_in_fp32_and_fp64_every_update_is_torchs_adamw_bit_for_bit(
    update: str, dtype: torch.dtype, options: dict[str, object], foreach: bool
) -> None:
    mine, theirs = parameters(dtype), parameters(dtype)
    ours, reference = AdamW(mine, update=update, **options), torch.optim.AdamW(theirs, foreach=foreach, **options)
    for step in range(5):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        ours.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    for a, b in zip(mine, theirs, strict=True):
        assert all(torch.equal(ours.state[a][key], reference.state[b][key]) for key in ("step", "exp_avg", "exp_avg_sq"))


def test_plain_in_bf16_is_torchs_adamw() -> None:
    mine, theirs = parameters(torch.bfloat16), parameters(torch.bfloat16)
    ours, reference = AdamW(mine), torch.optim.AdamW(theirs)
    for step in range(3):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        ours.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("update", ["stochastic", "kahan"])
def test_a_first_bf16_step_is_the_fp32_step_within_one_ulp(update: str) -> None:
    low, wide = parameters(torch.bfloat16), [nn.Parameter(p.detach().float()) for p in parameters(torch.bfloat16)]
    set_gradients(low, 1)
    for a, b in zip(low, wide, strict=True):
        b.grad = a.grad.float()
    AdamW(low, lr=1e-2, update=update).step()
    torch.optim.AdamW(wide, lr=1e-2).step()
    for a, b in zip(low, wide, strict=True):
        ulp = 2.0 ** (torch.frexp(b.detach()).exponent.float() - 8)
        assert ((a.float() - b).abs() <= ulp).all()


@settings(deadline=None, max_examples=60)
@given(value=st.floats(2.0**-100, 2.0**100, width=32), negative=st.booleans(), seed=st.integers(0, 2**32))
def test_stochastic_rounding_takes_one_of_the_two_neighbours_and_is_unbiased(value: float, negative: bool, seed: int) -> None:
    value, count = -value if negative else value, 4096
    source = torch.full((count,), value, dtype=torch.float32)
    rounded = torch.empty(count, dtype=torch.bfloat16)
    copy_stochastic_(rounded, source.clone(), torch.Generator().manual_seed(seed))
    bits = source[:1].view(torch.int32).item()
    near, far = (torch.tensor([bits & -65536, (bits & -65536) + 65536]).to(torch.int32).view(torch.float32)).tolist()
    assert set(rounded.float().tolist()) <= {near, far}
    probability = (bits & 0xFFFF) / 65536
    share = (rounded.float() == far).double().mean().item() if far != near else 0.0
    # Six standard deviations: one false alarm in 500 million draws of a value.
    assert abs(share - probability) <= 6 * (probability * (1 - probability) / count) ** 0.5


def test_stochastic_rounding_uses_every_bit_of_the_draw_alike() -> None:
    # One 64-bit draw serves eight elements: no lane may be poorer than the others, and the four that share no bits must
    # not go together. The other four take the complements.
    count = 1 << 17
    source = torch.full((count,), 1 + 2.0**-8)  # halfway between two bf16 numbers
    rounded = torch.empty(count, dtype=torch.bfloat16)
    copy_stochastic_(rounded, source, torch.Generator().manual_seed(0))
    up = (rounded > 1).double().view(-1, 8)
    assert ((up.mean(0) - 0.5).abs() < 6 * 0.5 / len(up) ** 0.5).all()
    assert (torch.corrcoef(up[:, :4].t()) - torch.eye(4)).abs().max() < 6 / len(up) ** 0.5
    assert torch.equal(up[:, :4], 1 - up[:, 4:])


@pytest.mark.parametrize("lane", range(8))
def test_the_noise_of_each_lane_is_uniform(lane: int) -> None:
    noise = _noise(1 << 19, torch.device("cpu"), torch.Generator().manual_seed(1)).view(-1, 8)[:, lane]
    assert noise.min() >= 0 and noise.max() < 1 << 16
    counts = torch.bincount(noise >> 8, minlength=256).double()
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    # 255 degrees of freedom: mean 255, standard deviation 22.6; six of those each way.
    assert 255 - 6 * 22.6 < chi_square < 255 + 6 * 22.6
    assert all(abs(((noise >> bit) & 1).double().mean() - 0.5) < 6 * 0.5 / len(noise) ** 0.5 for bit in range(16))


def test_stochastic_rounding_keeps_what_is_exact_and_what_is_no_number() -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -3.0, 2.0**-133, float("inf"), -float("inf"), float("nan")]).repeat(1000)
    rounded = torch.empty(exact.shape, dtype=torch.bfloat16)
    copy_stochastic_(rounded, exact.clone(), torch.Generator().manual_seed(0))
    assert torch.equal(rounded.float().nan_to_num(7), exact.nan_to_num(7))
    assert torch.equal(rounded.signbit()[~exact.isnan()], exact.signbit()[~exact.isnan()])


@pytest.mark.parametrize(("dtype", "small"), [(torch.bfloat16, 2.0**-12), (torch.float16, 2.0**-15)])
def test_kahan_adds_up_what_rounding_to_nearest_loses(dtype: torch.dtype, small: float) -> None:
    steps = 1000
    kahan, plain, left = (torch.tensor([start], dtype=dtype) for start in (1.0, 1.0, 0.0))
    for _ in range(steps):
        add_compensated_(kahan, torch.tensor([small]), left)
        plain += small
    assert plain.item() == 1.0
    assert abs(kahan.item() + left.item() - (1 + steps * small)) <= small


@pytest.mark.parametrize("update", ["stochastic", "kahan"])
def test_small_updates_arrive_where_plain_bf16_stands_still(update: str) -> None:
    def train(optimizer_update: str) -> float:
        weight = nn.Parameter(torch.ones(2000, dtype=torch.bfloat16))
        optimizer = AdamW([weight], lr=1e-4, weight_decay=0.0, update=optimizer_update)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return weight.double().mean().item()

    assert train("plain") == 1.0
    # A constant gradient moves AdamW by the learning rate a step: 100 x 1e-4 down from 1.
    assert abs(train(update) - 0.99) < 0.002


@pytest.mark.parametrize("update", ["plain", "stochastic", "kahan"])
def test_a_run_saved_and_resumed_goes_on_to_the_same_bits(update: str) -> None:
    def run(params: list[nn.Parameter], optimizer: AdamW, steps: range) -> None:
        for step in steps:
            set_gradients(params, step)
            optimizer.step()

    straight = parameters(torch.bfloat16)
    run(straight, AdamW(straight, update=update, seed=3), range(6))
    first = parameters(torch.bfloat16)
    optimizer = AdamW(first, update=update, seed=3)
    run(first, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"weights": [p.detach() for p in first], "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = [nn.Parameter(weight) for weight in saved["weights"]]
    resumed = AdamW(second, update=update, seed=99)
    resumed.load_state_dict(saved["optimizer"])
    run(second, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, second, strict=True))


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    def train(seed: int) -> Tensor:
        params = [nn.Parameter(torch.ones(999, dtype=torch.bfloat16))]
        set_gradients(params, 0)
        AdamW(params, update="stochastic", seed=seed).step()
        return params[0].detach()

    assert torch.equal(train(1), train(1))
    assert not torch.equal(train(1), train(2))


def test_the_global_random_stream_is_left_alone() -> None:
    before = torch.get_rng_state()
    params = parameters(torch.bfloat16)
    set_gradients(params, 0)
    AdamW(params, update="stochastic").step()
    assert torch.equal(torch.get_rng_state(), before)


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> list[Tensor]:
        params = [nn.Parameter(torch.ones(50, 7, dtype=torch.bfloat16)), nn.Parameter(torch.ones(33, dtype=torch.bfloat16))]
        optimizer = AdamW(params, lr=1e-2, update="stochastic")
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        return [p.detach() for p in params]

    whole = train()
    monkeypatch.setattr("labkit.techniques.optimizers._CPU_PIECE", 16)
    assert all(torch.equal(a, b) for a, b in zip(whole, train(), strict=True))


@pytest.mark.parametrize("update", ["stochastic", "kahan"])
def test_a_parameter_with_gaps_in_memory_is_updated_too(update: str) -> None:
    base = torch.ones(6, 8, dtype=torch.bfloat16)
    gappy, dense = nn.Parameter(base[:, ::2].t()), nn.Parameter(torch.ones(4, 6, dtype=torch.bfloat16))
    for parameter in (gappy, dense):
        parameter.grad = torch.ones(4, 6, dtype=torch.bfloat16)
        AdamW([parameter], lr=0.25, update=update).step()
    assert torch.equal(gappy, dense)
    assert base[:, 1::2].eq(1).all()


def test_like_takes_over_groups_options_and_state() -> None:
    params = parameters(torch.bfloat16)
    base = torch.optim.AdamW(
        [{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:], "lr": 0.125}], betas=(0.7, 0.9), eps=1e-6
    )
    set_gradients(params, 0)
    base.step()
    twin = like(base, update="kahan")
    for mine, theirs in zip(twin.param_groups, base.param_groups, strict=True):
        assert {key: mine[key] for key in ("lr", "weight_decay", "betas", "eps")} == {
            key: theirs[key] for key in ("lr", "weight_decay", "betas", "eps")
        }
        assert all(a is b for a, b in zip(mine["params"], theirs["params"], strict=True))
    scheduler = torch.optim.lr_scheduler.StepLR(twin, 1, gamma=0.5)
    assert twin.state[params[0]]["step"] == 1
    twin.step()
    assert base.state[params[0]]["step"] == 2
    scheduler.step()
    assert twin.param_groups[1]["lr"] == 0.0625


def test_a_kahan_step_keeps_one_low_precision_tensor_more_and_stochastic_none() -> None:
    for update, keys in (("stochastic", {"exp_avg", "exp_avg_sq"}), ("kahan", {"exp_avg", "exp_avg_sq", "compensation"})):
        params = parameters(torch.bfloat16)
        set_gradients(params, 0)
        optimizer = AdamW(params, update=update)
        optimizer.step()
        state = {key: value for key, value in optimizer.state[params[0]].items() if key != "step"}
        assert set(state) == keys
        assert all(value.dtype == torch.bfloat16 and value.shape == params[0].shape for value in state.values())


@pytest.mark.parametrize("update", ["plain", "stochastic", "kahan"])
def test_steps_run_on_fake_tensors(update: str) -> None:
    with FakeTensorMode():
        parameter = nn.Parameter(torch.empty(10, 10, dtype=torch.bfloat16))
        optimizer = AdamW([parameter], update=update)
        for _ in range(2):
            parameter.grad = torch.empty_like(parameter)
            optimizer.step()
    assert optimizer.state[parameter]["exp_avg"].dtype == torch.bfloat16


def test_a_closure_is_called_with_gradients_on() -> None:
    params = parameters(torch.bfloat16)
    optimizer = AdamW(params, update="kahan")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(p.square().sum() for p in params)
        loss.backward()
        return loss

    before = copy.deepcopy(params)
    assert optimizer.step(closure).item() > 0
    assert any(not torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_what_cannot_be_done_is_refused_in_a_sentence() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    with pytest.raises(ValueError, match="'sr' is not one of: plain, stochastic, kahan"):
        AdamW([weight], update="sr")
    with pytest.raises(ValueError, match="no amsgrad"):
        AdamW([weight], update="kahan", amsgrad=True)
    with pytest.raises(ValueError, match="bf16 parameters"):
        AdamW([weight], update="stochastic")
    with pytest.raises(TypeError, match="not SGD"):
        like(torch.optim.SGD([weight], lr=0.1), update="kahan")
