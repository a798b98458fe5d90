"""AdamW for weights too coarse to hold their own updates: stochastic rounding and Kahan summation.

A bf16 weight near 1 moves in steps of 2^-8; an update of 1e-4 is rounded away, every time. Two cures keep the weights in
bf16. Stochastic rounding rounds up with a probability equal to the part cut off, so the update arrives on average.
Kahan summation keeps what was cut off in a second low-precision tensor and adds it to the next update.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

UPDATES = ("plain", "stochastic", "kahan")
#: Elements updated at a time on a CPU: the fp32 working copies of one piece stay in its cache.
_PIECE = 1 << 15


class AdamW(torch.optim.AdamW):
    """torch's AdamW with a choice of how an update is added to a low-precision weight.

    `update` is "plain" (torch's own step, bit for bit), "stochastic" (bf16 weights; random bits from a generator seeded
    with `seed`) or "kahan" (bf16 or fp16 weights; one more tensor of state a parameter, in the parameter's dtype). In
    the last two the arithmetic runs in fp32 on small pieces and only the results are rounded; fp32 and fp64 parameters
    need no cure and take torch's arithmetic. `state_dict` holds the generators too: a resumed run goes on exactly.

    Raises ValueError for an unknown update, for options that the twins lack (amsgrad, capturable, differentiable), and
    for stochastic rounding of fp16 parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        update: Literal["plain", "stochastic", "kahan"] = "plain",
        seed: int = 0,
        **options: Any,
    ) -> None:
        if update not in UPDATES:
            raise ValueError(f"update {update!r} is not one of: {', '.join(UPDATES)}")
        self.update = update
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        super().__init__(params, lr, **options)
        if update != "plain":
            self._refuse_unsupported()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One optimizer step; `closure` re-evaluates the model and returns the loss, as in torch."""
        if self.update == "plain":
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """torch's state, with the state of the rounding generators under "rounding"."""
        rounding = {str(device): generator.get_state() for device, generator in self._generators.items()}
        return super().state_dict() | {"rounding": rounding}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a `state_dict` of this class or of torch's AdamW."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "rounding"})
        for device, state in state_dict.get("rounding", {}).items():
            self._generator(torch.device(device)).set_state(state)

    def _refuse_unsupported(self) -> None:
        for group in self.param_groups:
            for option in ("amsgrad", "capturable", "differentiable"):
                if group[option]:
                    raise ValueError(f"AdamW with update={self.update!r} has no {option}; leave it off")
            if self.update == "stochastic" and any(p.dtype == torch.float16 for p in group["params"]):
                raise ValueError("stochastic rounding is for bf16 parameters, not torch.float16; use update='kahan'")

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def _step_parameter(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        low = parameter.dtype in (torch.bfloat16, torch.float16)
        compensated = self.update == "kahan" and low
        if compensated and "compensation" not in state:
            state["compensation"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        rule = _Rule(group, state["step"].item())
        names = ("exp_avg", "exp_avg_sq") + (("compensation",) if compensated else ())
        for weight, grad, mean, square, *rest in _pieces(parameter, parameter.grad, *(state[name] for name in names)):
            if not low:
                rule.in_place(weight, grad, mean, square)
            elif compensated:
                add_compensated_(weight, rule.change(weight, grad, mean, square), rest[0])
            else:
                change = rule.change(weight, grad, mean, square)
                copy_stochastic_(weight, change.add_(weight), self._generator(parameter.device))


class _Rule:
    """AdamW's arithmetic at one step (Loshchilov and Hutter 2019, algorithm 2), in torch's order of operations."""

    def __init__(self, group: dict[str, Any], step: float) -> None:
        self.beta1, self.beta2 = (float(beta) for beta in group["betas"])
        lr = float(group["lr"])
        self.decay = lr * group["weight_decay"]
        self.eps = group["eps"]
        self.sign = -1 if group["maximize"] else 1
        self.step_size = lr / (1 - self.beta1**step)
        self.correction = (1 - self.beta2**step) ** 0.5

    def in_place(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> None:
        """The step in the weight's own dtype: the same operations as torch's, so the same bits."""
        weight.mul_(1 - self.decay)
        denominator = self._moments(grad * self.sign, mean, square)
        weight.addcdiv_(mean, denominator, value=-self.step_size)

    def change(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        """What the step adds to the weight, in fp32; the new moments are rounded to nearest into `mean` and `square`."""
        mean32, square32 = mean.float(), square.float()
        denominator = self._moments(grad.float().mul_(self.sign), mean32, square32)
        mean.copy_(mean32)
        square.copy_(square32)
        return mean32.div_(denominator).mul_(-self.step_size).add_(weight, alpha=-self.decay)

    def _moments(self, grad: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        return (square.sqrt() / self.correction).add_(self.eps)


def copy_stochastic_(target: Tensor, source: Tensor, generator: torch.Generator) -> None:
    """Round fp32 `source` into bf16 `target`, up or down by chance, so that the mean of many roundings is `source`.

    A bf16 number is the upper half of an fp32 one. Adding a uniform 16-bit number to the lower half carries into the
    upper half with exactly the probability of the part cut off. `source` is used as scratch and holds the result too.
    """
    words = -(-source.numel() // 4)  # one 64-bit draw serves four elements
    draws = torch.empty(words, dtype=torch.int64, device=source.device)
    draws.random_(-(2**63), None, generator=generator)
    noise = draws.view(torch.int16)[: source.numel()].view(source.shape)
    bits = source.view(torch.int32)
    # The noise is signed, [-2^15, 2^15); with 2^15 on top it is the uniform number wanted.
    bits.add_(noise).add_(1 << 15).bitwise_and_(-(1 << 16))
    target.copy_(source)


def add_compensated_(weight: Tensor, change: Tensor, compensation: Tensor) -> None:
    """Add fp32 `change` to a low-precision `weight`, keeping what rounding cuts off in `compensation` (Kahan 1965).

    `change` is used as scratch.
    """
    change.add_(compensation)
    before = weight.float()
    weight.copy_(before + change)
    compensation.copy_(change.sub_(weight.float().sub_(before)))


def like(optimizer: Optimizer, *, update: Literal["plain", "stochastic", "kahan"], seed: int = 0) -> AdamW:
    """The twin of a torch AdamW, over the same parameters and groups, that adds its updates in another way.

    Moments that `optimizer` has gathered already are shared, not copied: use one of the two from then on.
    Raises TypeError when `optimizer` is not a torch.optim.AdamW, ValueError as `AdamW` does.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        raise TypeError(f"a twin with update={update!r} needs a torch.optim.AdamW, not {type(optimizer).__name__}")
    groups = [dict(group) for group in optimizer.param_groups]
    twin = AdamW(groups, update=update, seed=seed)
    twin.state.update({parameter: dict(state) for parameter, state in optimizer.state.items()})
    return twin


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching pieces of `tensors` (all of one shape), small enough for a CPU's cache; views, not copies."""
    whole = tensors[0].device.type != "cpu" or not all(tensor.is_contiguous() for tensor in tensors)
    if whole:
        yield tensors
        return
    yield from zip(*(tensor.view(-1).split(_PIECE) for tensor in tensors), strict=True)
