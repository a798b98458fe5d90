"""One training step: the right order of scaling, accumulation, clipping and stepping."""

import io
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from technique_models import batch, gradients, loss, same_bits, workload
from torch import Tensor, nn

from labkit.techniques.precision import PRECISIONS
from labkit.techniques.step import TrainingStep
from labkit.workload import Workload

REGRESSION = Workload(
    model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
    batch=lambda size: (torch.randn(size, 3), torch.randn(size, 1)),
    loss=lambda model, data: F.mse_loss(model(data[0]), data[1]),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)


def weights(step: TrainingStep) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in step.model.parameters()]


def test_fp32_is_the_plain_loop_bit_for_bit() -> None:
    step = TrainingStep(workload(), device="cpu", seed=4)
    torch.manual_seed(4)
    model = workload().model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for seed in range(3):
        result = step(batch(4, seed))
        optimizer.zero_grad()
        value = loss(model, batch(4, seed))
        value.backward()
        optimizer.step()
        assert torch.equal(result.loss, value.detach())
        assert result.grad_norm is None and not result.skipped
    assert same_bits(weights(step), [parameter.detach() for parameter in model.parameters()])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_setting_starts_from_the_same_weights_rounded(precision: str) -> None:
    exact, other = TrainingStep(workload(), device="cpu"), TrainingStep(workload(), precision=precision, device="cpu")
    dtype = PRECISIONS[precision].parameter_dtype
    assert same_bits([weight.to(dtype) for weight in weights(exact)], weights(other))


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "16-true"])
def test_every_setting_learns_but_pure_fp16(precision: str) -> None:
    step = TrainingStep(workload(), precision=precision, device="cpu", clip=1.0)
    losses = [step(batch(4), batch(4)).loss.item() for _ in range(12)]
    assert losses[-1] < losses[0]


def test_pure_fp16_with_adam_is_not_a_number_after_a_step() -> None:
    # The denominator's eps, 1e-8, is 0 in fp16: a gradient of 0 gives 0 / 0.
    step = TrainingStep(workload(), precision="16-true", device="cpu")
    step(batch(4))
    assert step(batch(4)).loss.isnan()


@pytest.mark.parametrize("count", [2, 4])
def test_accumulated_micro_batches_are_one_batch(count: int) -> None:
    micro = [batch(2, seed) for seed in range(count)]
    whole = tuple(torch.cat(parts) for parts in zip(*micro, strict=True))
    one, many = TrainingStep(workload(), device="cpu", precision="64-true"), None
    many = TrainingStep(workload(), device="cpu", precision="64-true")
    a, b = one(whole), many(*micro)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=0)
    for left, right in zip(gradients(one.model), gradients(many.model), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def test_clipping_acts_on_the_true_gradient_under_the_scaler() -> None:
    plain = TrainingStep(workload(), device="cpu", clip=1e-3)
    scaled = TrainingStep(workload(), precision="16-mixed", device="cpu", clip=1e-3)
    a, b = plain(batch(4)), scaled(batch(4))
    torch.testing.assert_close(a.grad_norm, b.grad_norm, rtol=1e-2, atol=0)
    clipped = torch.stack([gradient.norm() for gradient in gradients(scaled.model)]).norm()
    torch.testing.assert_close(clipped, torch.tensor(1e-3), rtol=1e-3, atol=0)


def test_an_overflow_skips_the_step_and_lowers_the_scale_once() -> None:
    step = TrainingStep(workload(), precision="16-mixed", device="cpu")
    step(batch(4))
    before, scale = weights(step), step.scaler.get_scale()
    step.scaler = step.precision.scaler("cpu", init_scale=2.0**40)
    result = step(batch(4), batch(4, 1))
    assert result.skipped and result.loss.isfinite()
    assert same_bits(before, weights(step))
    assert step.scaler.get_scale() == 2.0**39 != scale
    step.scaler = step.precision.scaler("cpu")
    assert not step(batch(4)).skipped


def test_a_resumed_step_goes_on_to_the_same_bits() -> None:
    for precision in ("16-mixed", "bf16-true-sr", "bf16-true-kahan", "32-true"):
        straight = TrainingStep(workload(), precision=precision, device="cpu", clip=1.0)
        for seed in range(4):
            straight(batch(4, seed))
        first = TrainingStep(workload(), precision=precision, device="cpu", clip=1.0)
        first(batch(4, 0)), first(batch(4, 1))
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = TrainingStep(workload(), precision=precision, device="cpu", clip=1.0, seed=9)
        second.load_state_dict(torch.load(file, weights_only=True))
        second(batch(4, 2)), second(batch(4, 3))
        assert same_bits(weights(straight), weights(second)), precision


def test_a_model_and_inputs_of_floats_follow_the_setting() -> None:
    for name in ("64-true", "bf16-true", "bf16-mixed", "16-mixed"):
        step = TrainingStep(REGRESSION, precision=name, device="cpu")
        assert step(REGRESSION.batch(5)).loss.isfinite()
        assert {parameter.dtype for parameter in step.model.parameters()} == {PRECISIONS[name].parameter_dtype}


def test_a_given_model_is_used_and_not_seeded() -> None:
    model = REGRESSION.model()
    before = torch.get_rng_state()
    step = TrainingStep(REGRESSION, device="cpu", model=model)
    assert step.model is model
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_done_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="is not one of: 64-true"):
        TrainingStep(REGRESSION, precision="half", device="cpu")
    with pytest.raises(ValueError, match="is not one of: none, full"):
        TrainingStep(workload(), checkpointing="some", device="cpu")
    with pytest.raises(ValueError, match="needs blocks"):
        TrainingStep(replace(REGRESSION, blocks=lambda model: []), checkpointing="full", device="cpu")
    with pytest.raises(TypeError, match="AdamW, not SGD"):
        TrainingStep(REGRESSION, precision="bf16-true-sr", device="cpu")
    with pytest.raises(ValueError, match="at least one batch"):
        TrainingStep(REGRESSION, device="cpu")()
