"""Exercises of notebook 05: updates that vanish, and three ways to keep them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from labkit.exercises.core import Exercise, Wrong, expect

# 05-vanishes


def vanishes(weight: float, update: float) -> bool:
    """Whether adding `update` to the bf16 number `weight` gives `weight` back."""
    import math

    exponent = math.floor(math.log2(abs(weight)))
    toward_zero = (update < 0) == (weight > 0)
    at_power = abs(weight) == 2.0**exponent
    ulp = 2.0 ** (exponent - 7) / (2 if toward_zero and at_power else 1)
    # A tie goes to the even neighbour: the old weight stays when its own last bit is 0.
    even = at_power or (abs(weight) / 2.0 ** (exponent - 7)) % 2 == 0
    return abs(update) < ulp / 2 or (abs(update) == ulp / 2 and even)


_VANISHING = [
    (1.0, 0.001, "half of the step above 1 is 2^-8 = 0.0039"),
    (1.0, 0.005, "0.005 is more than half of the step above 1, 2^-8 = 0.0039"),
    (0.015625, 0.0001, "near 2^-6 the numbers lie 2^-13 = 0.00012 apart, so 0.0001 is more than half a step"),
    (100.0, 0.2, "near 100 the numbers lie half a unit apart"),
    (-3.0, 0.004, "near 3 the numbers lie 2^-6 apart; the sign does not matter"),
    (1.0, -0.003, "below 1 the numbers lie twice as close as above: half a step is 2^-9 = 0.00195"),
    (1.0, 2.0**-8, "exactly half a step is a tie, and 1 has the even last bit"),
]


def _check_vanishes(answer: Callable[[float, float], bool]) -> None:
    for weight, update, why in _VANISHING:
        start = torch.tensor(weight, dtype=torch.bfloat16)
        want = bool(start + update == start)
        got = answer(weight, update)
        word = "does vanish" if want else "does not vanish"
        expect(bool(got) == want, f"{weight:g} + {update:g}: the update {word} in bf16 ({why}); your function said {got!r}")


def _whole_step(weight: float, update: float) -> bool:
    return abs(update) < 2.0 ** (math.floor(math.log2(abs(weight))) - 7)


def _ignores_the_weight(weight: float, update: float) -> bool:
    return abs(update) < 2.0**-8


def _thinks_of_fp32(weight: float, update: float) -> bool:
    return bool(torch.tensor(weight) + update == weight)


def _forgets_below_a_power(weight: float, update: float) -> bool:
    return abs(update) <= 2.0 ** (math.floor(math.log2(abs(weight))) - 8)


# 05-decay


def decay_applies(learning_rate: float, weight_decay: float, dtype: torch.dtype) -> bool:
    """Whether AdamW's decay, weight * (1 - learning_rate * weight_decay), can change any weight of `dtype`."""
    # The easiest case is a power of two: the numbers below it lie eps / 2 apart, and half of that has to be passed.
    return learning_rate * weight_decay > torch.finfo(dtype).eps / 4


def _check_decay(answer: Callable[[float, float, torch.dtype], bool]) -> None:
    for learning_rate, weight_decay, dtype in (
        (1e-3, 0.1, torch.bfloat16),
        (1e-3, 0.1, torch.float32),
        (1e-2, 0.1, torch.bfloat16),
        (3e-2, 0.1, torch.bfloat16),
        (3e-3, 0.1, torch.float16),
        (1e-5, 0.01, torch.float32),
    ):
        weights = torch.arange(1, 2, torch.finfo(torch.bfloat16).eps, dtype=torch.float32).to(dtype)
        want = bool((weights * (1 - learning_rate * weight_decay) != weights).any())
        got = answer(learning_rate, weight_decay, dtype)
        name = str(dtype).removeprefix("torch.")
        expect(
            bool(got) == want,
            f"lr {learning_rate:g} and decay {weight_decay:g} shrink a weight by a factor of "
            f"1 - {learning_rate * weight_decay:g} a step; in {name} that {'does' if want else 'never does'} change a weight, "
            f"your function said {got!r}",
        )


def _decay_alone(learning_rate: float, weight_decay: float, dtype: torch.dtype) -> bool:
    return weight_decay > torch.finfo(dtype).eps / 4


def _tiny_instead_of_eps(learning_rate: float, weight_decay: float, dtype: torch.dtype) -> bool:
    return learning_rate * weight_decay > torch.finfo(dtype).tiny


def _always(learning_rate: float, weight_decay: float, dtype: torch.dtype) -> bool:
    return learning_rate * weight_decay > 0


# 05-master


def master_step(model: nn.Module, masters: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """One step on fp32 `masters` (the tensors `optimizer` holds) with the gradients of the low-precision `model`."""
    for parameter, master in zip(model.parameters(), masters, strict=True):
        master.grad = parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.copy_(master)


def _check_master(answer: Callable[[nn.Module, list[Tensor], torch.optim.Optimizer], None]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(torch.bfloat16)
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=1e-3)
    start = [master.detach().clone() for master in masters]
    for _ in range(10):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        answer(model, masters, optimizer)
    dtypes = {parameter.dtype for parameter in model.parameters()}
    expect(dtypes == {torch.bfloat16}, f"the model is to stay in bf16, its parameters are now {dtypes}")
    for parameter, master, before in zip(model.parameters(), masters, start, strict=True):
        expect(not torch.equal(master, before), "the fp32 masters did not move: give them the gradients and step the optimizer")
        want = before - 10 * 1e-3 * 0.25
        expect(
            torch.allclose(master.detach(), want, atol=1e-6),
            "after ten small steps the masters are off: they are to keep fp32's small changes, so never overwrite them with "
            "the rounded weights, and step once a call",
        )
        expect(
            torch.equal(parameter.detach(), master.detach().to(torch.bfloat16)),
            "the model's weights are not its masters rounded to bf16: copy the masters back after the step",
        )


def _no_copy_back(model: nn.Module, masters: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    for parameter, master in zip(model.parameters(), masters, strict=True):
        master.grad = parameter.grad.float()
    optimizer.step()


def _masters_from_model(model: nn.Module, masters: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.copy_(parameter)
    master_step(model, masters, optimizer)


def _no_gradients(model: nn.Module, masters: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.copy_(master)


def _model_to_fp32(model: nn.Module, masters: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    master_step(model, masters, optimizer)
    model.float()


# 05-stochastic


def round_stochastically(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The fp32 tensor `x` in bf16, rounded up or down by chance so that the mean is `x`."""
    bits = x.view(torch.int32)
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)


_Round = Callable[[Tensor, torch.Generator], Tensor]


def _check_stochastic(answer: _Round) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([1.0, -0.5, 3.0, 0.0])
    got = answer(exact.clone(), generator)
    expect(isinstance(got, Tensor) and got.dtype == torch.bfloat16, f"the result is to be a bf16 tensor, not {_kind(got)}")
    same = torch.equal(got.float(), exact)
    expect(same, f"{exact.tolist()} are bf16 numbers already and must stay; you gave {got.tolist()}")
    count = 40_000
    for value in (1.002, -1.002, 0.30001, 1.0 + 2**-8):
        x = torch.full((count,), value)
        got = answer(x.clone(), generator).double()
        low = x[:1].clone().view(torch.int32).bitwise_and(~0xFFFF).view(torch.float32).double()
        step = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
        high = low + math.copysign(step, value)
        expect(
            bool(((got == low) | (got == high)).all()),
            f"{value:g} lies between {low.item():g} and {high.item():g}; your function gave {got.unique().tolist()[:4]}",
        )
        mean, true = got.mean().item(), x[0].double().item()
        # Five standard errors of a mean of `count` draws between two neighbours, at most half a step each.
        tolerance = 5 * step / 2 / math.sqrt(count)
        expect(
            abs(mean - true) < tolerance,
            f"{count:,} roundings of {true:.6f} average {mean:.6f}: the mean is off by more than chance allows, so the "
            f"rounding is biased",
        )


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def _to_nearest(x: Tensor, generator: torch.Generator) -> Tensor:
    return x.to(torch.bfloat16)


def _half_up(x: Tensor, generator: torch.Generator) -> Tensor:
    up = torch.rand(x.shape, generator=generator) < 0.5
    low = x.view(torch.int32) & ~0xFFFF
    high = torch.where(low.view(torch.float32) == x, low, low + (1 << 16))
    return torch.where(up, high, low).view(torch.float32).to(torch.bfloat16)


def _noise_then_nearest(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)
    return (x.view(torch.int32) + noise).view(torch.float32).to(torch.bfloat16)


def _stays_fp32(x: Tensor, generator: torch.Generator) -> Tensor:
    return round_stochastically(x, generator).float()


# 05-kahan


def kahan_add(weight: torch.Tensor, update: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bf16 `weight` plus the fp32 `update` and the bf16 `kept`; returns the new weight and the new kept, both bf16."""
    wanted = update + kept.float()
    new = (weight.float() + wanted).to(torch.bfloat16)
    return new, (wanted - (new.float() - weight.float())).to(torch.bfloat16)


_Kahan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _check_kahan(answer: _Kahan) -> None:
    for start, change in ((1.0, 0.001), (-1.0, 0.0007), (2.0, -0.003), (1.0, 0.02)):
        weight = torch.tensor([start], dtype=torch.bfloat16)
        kept = torch.zeros_like(weight)
        for _ in range(200):
            weight, kept = answer(weight.clone(), torch.tensor([change]), kept.clone())
        expect(
            weight.dtype == kept.dtype == torch.bfloat16,
            f"weight and kept are both to be bf16, not {_kind(weight)} and {_kind(kept)}",
        )
        want = start + 200 * change
        step = 2.0 ** (math.floor(math.log2(max(abs(want), abs(start)))) - 7)
        expect(
            abs(weight.item() - want) <= step,
            f"{start:g} plus 200 times {change:g} is {want:g}; yours arrived at {weight.item():g}, more than one bf16 step off",
        )
        total = weight.item() + kept.item()
        expect(
            abs(total - want) <= step / 8,
            f"weight + kept is {total:g} and should be close to {want:g}: what rounding cut off is not kept whole",
        )


def _plain_add(weight: Tensor, update: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    return (weight.float() + update).to(torch.bfloat16), kept


def _wrong_sign(weight: Tensor, update: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    wanted = update + kept.float()
    new = (weight.float() + wanted).to(torch.bfloat16)
    return new, ((new.float() - weight.float()) - wanted).to(torch.bfloat16)


def _forgets_the_old_rest(weight: Tensor, update: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    new = (weight.float() + update + kept.float()).to(torch.bfloat16)
    return new, (update - (new.float() - weight.float())).to(torch.bfloat16)


def _keeps_fp32(weight: Tensor, update: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    new, rest = kahan_add(weight, update, kept)
    return new, rest.float()


# 05-bytes


def bytes_per_parameter(scheme: str) -> int:
    """Bytes of weight, gradient and AdamW state a parameter; schemes: 32-true, bf16-true, bf16-true-kahan, bf16-master."""
    weight, gradient, moments, extra = {
        "32-true": (4, 4, 8, 0),
        "bf16-true": (2, 2, 4, 0),
        "bf16-true-kahan": (2, 2, 4, 2),
        "bf16-master": (2, 2, 8, 4),
    }[scheme]
    return weight + gradient + moments + extra


_BYTES = {
    "32-true": (16, "weight 4, gradient 4, and AdamW's two moments 4 each"),
    "bf16-true": (8, "weight, gradient and two moments, 2 bytes each"),
    "bf16-true-kahan": (10, "bf16-true and one more bf16 number, the part that was cut off"),
    "bf16-master": (16, "weight and gradient in bf16, the master and its two moments in fp32"),
}


def _check_bytes(answer: Callable[[str], int]) -> None:
    for scheme, (want, parts) in _BYTES.items():
        got = answer(scheme)
        expect(got == want, f"{scheme} takes {want} bytes a parameter ({parts}); your function said {got!r}")


def _weights_only(scheme: str) -> int:
    return {"32-true": 4, "bf16-true": 2, "bf16-true-kahan": 4, "bf16-master": 6}[scheme]


def _one_moment(scheme: str) -> int:
    return {"32-true": 12, "bf16-true": 6, "bf16-true-kahan": 8, "bf16-master": 12}[scheme]


def _low_moments(scheme: str) -> int:
    return 12 if scheme == "bf16-master" else bytes_per_parameter(scheme)


EXERCISES = [
    Exercise(
        id="05-vanishes",
        solution=vanishes,
        check=_check_vanishes,
        hints=(
            "Two neighbouring bf16 numbers in [2^e, 2^(e+1)) lie 2^(e-7) apart. What does rounding to nearest do with less "
            "than half of that?",
            "`e = math.floor(math.log2(abs(weight)))`. Toward zero from a power of two the step is half as wide. A tie goes to "
            "the neighbour whose last bit is 0.",
            "Or let torch do it: `w = torch.tensor(weight, dtype=torch.bfloat16)` and ask whether `w + update == w`.",
        ),
        wrong=(
            Wrong(_whole_step, "takes a whole step for half a step", "1 + 0.005: the update does not vanish"),
            Wrong(_ignores_the_weight, "takes one threshold for all weights", "0.015625 + 0.0001: the update does not vanish"),
            Wrong(_thinks_of_fp32, "adds in fp32", "1 + 0.001: the update does vanish"),
            Wrong(_forgets_below_a_power, "takes the step above a power of two for the step below", "below 1 the numbers lie"),
        ),
        note=(
            "The threshold moves with the weight: half an ulp is about 0.2 % to 0.4 % of it in bf16. AdamW's update has the "
            "size of the learning rate, whatever the weight, so it is the large weights that stop first."
        ),
    ),
    Exercise(
        id="05-decay",
        solution=decay_applies,
        check=_check_decay,
        hints=(
            "Decay multiplies: the change is a fixed part of the weight. So the weight's size cancels.",
            "`torch.finfo(dtype).eps` is the step just above 1. The easiest weight to move is a power of two, because the "
            "numbers just below it lie twice as close.",
            "Half of the step below a power of two is `eps / 4` of it. The change has to be larger than that.",
        ),
        wrong=(
            Wrong(_decay_alone, "forgets that the learning rate multiplies the decay", "your function said True"),
            Wrong(_tiny_instead_of_eps, "takes the smallest number for the smallest relative step", "never does"),
            Wrong(_always, "believes any decay above zero works", "never does"),
        ),
        note=(
            "In bf16 the product of learning rate and decay has to pass 2^-9, about 0.002. The usual 1e-3 times 0.1 is twenty "
            "times too small: weight decay is configured, logged, and never happens."
        ),
    ),
    Exercise(
        id="05-master",
        solution=master_step,
        check=_check_master,
        hints=(
            "The optimizer knows the masters only. What does it need before it can step?",
            "Three moves: gradients over to the masters in fp32, one optimizer step, the masters back into the model.",
            "`master.grad = parameter.grad.float()`, then `optimizer.step()`, then `parameter.copy_(master)` under `no_grad`.",
        ),
        wrong=(
            Wrong(_no_copy_back, "forgets to copy the masters back", "copy the masters back"),
            Wrong(_masters_from_model, "refreshes the masters from the rounded weights", "never overwrite them"),
            Wrong(_no_gradients, "steps without giving the masters gradients", "did not move"),
            Wrong(_model_to_fp32, "turns the model itself into fp32", "the model is to stay in bf16"),
        ),
        note=(
            "The rounded weights are thrown away at each step and made again from the masters, so rounding errors do not add "
            "up. The price is 4 bytes a parameter, and moments in fp32 as well."
        ),
    ),
    Exercise(
        id="05-stochastic",
        solution=round_stochastically,
        check=_check_stochastic,
        hints=(
            "bf16 is the upper half of fp32. The lower 16 bits say how far the number is on its way to the next bf16 number.",
            "Add a random whole number from 0 to 65,535 to the bits, seen as an integer, and cut off the lower 16 bits.",
            "`((x.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)`, with `noise` from "
            "`torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)`.",
        ),
        wrong=(
            Wrong(_to_nearest, "rounds to nearest", "the rounding is biased"),
            Wrong(_half_up, "goes up half of the time, however far the number is", "the rounding is biased"),
            Wrong(_noise_then_nearest, "adds the noise and then rounds to nearest as well", "must stay"),
            Wrong(_stays_fp32, "leaves the result in fp32", "the result is to be a bf16 tensor, not torch.float32"),
        ),
        note=(
            "Seen as integers, the bits of neighbouring floats are neighbours too, so one integer addition does it for every "
            "exponent, and for negative numbers: their magnitude rounds the same way."
        ),
    ),
    Exercise(
        id="05-kahan",
        solution=kahan_add,
        check=_check_kahan,
        hints=(
            "Add what was kept to the update first. Then see how far the weight really moved.",
            "`new.float() - weight.float()` is the move that happened. What is left of the move that was wanted?",
            "`wanted = update + kept.float()`; `new = (weight.float() + wanted).to(torch.bfloat16)`; the rest is "
            "`wanted - (new.float() - weight.float())`.",
        ),
        wrong=(
            Wrong(_plain_add, "adds without keeping anything", "more than one bf16 step off"),
            Wrong(_wrong_sign, "keeps the rest with the wrong sign", "step off"),
            Wrong(_forgets_the_old_rest, "computes the new rest from the update alone", "off"),
            Wrong(_keeps_fp32, "keeps the rest in fp32, at twice the bytes", "both to be bf16"),
        ),
        note=(
            "The pair of weight and rest carries about 16 significant bits in 4 bytes. The rest is small, so bf16 holds it "
            "well: its exponent is free to follow."
        ),
    ),
    Exercise(
        id="05-bytes",
        solution=bytes_per_parameter,
        check=_check_bytes,
        hints=(
            "AdamW keeps two moments for each parameter, in the parameter's own dtype.",
            "fp32 takes 4 bytes, bf16 takes 2. Kahan keeps one more bf16 number. Masters bring fp32 moments with them.",
            "32-true: 4 + 4 + 8. bf16-true: half of it. Kahan: 2 more. Masters: 2 + 2 in bf16, and 4 + 8 in fp32.",
        ),
        wrong=(
            Wrong(_weights_only, "counts the weights alone", "32-true takes 16 bytes"),
            Wrong(_one_moment, "counts one moment instead of two", "32-true takes 16 bytes"),
            Wrong(_low_moments, "keeps the masters' moments in bf16", "bf16-master takes 16 bytes"),
        ),
        note=(
            "Masters give all of the saving back: 16 bytes, as in fp32. Stochastic rounding costs no byte and Kahan's sum "
            "costs two. What bf16 halves in every case are the activations."
        ),
    ),
]
