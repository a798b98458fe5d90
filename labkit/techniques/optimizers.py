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
LOW = (torch.bfloat16, torch.float16)
#: Elements updated at a time, so that the fp32 working copies stay small beside the model: few on a CPU, where they then
#: stay in its cache, more where launching an operation is dear. Multiples of eight: the size does not change which number
#: gets which random bits.
_CPU_PIECE, _PIECE = 1 << 18, 1 << 22


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
        scratch = _Scratch()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group, scratch)
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

    def _step_parameter(self, parameter: Tensor, group: dict[str, Any], scratch: "_Scratch") -> None:
        state = self._ready_state(parameter)
        state["step"] += 1
        rule = _Rule(group, state["step"].item(), scratch)
        grad, mean, square = parameter.grad, state["exp_avg"], state["exp_avg_sq"]
        if parameter.dtype not in LOW:
            rule.in_place(parameter, grad, mean, square)
        elif self.update == "kahan":
            for piece in _pieces(parameter, grad, mean, square, state["compensation"]):
                rule.compensated(*piece)
        else:
            for piece in _pieces(parameter, grad, mean, square):
                rule.stochastic(*piece, self._generator(parameter.device))

    def _ready_state(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        names = ["exp_avg", "exp_avg_sq"]
        if self.update == "kahan" and parameter.dtype in LOW:
            names.append("compensation")
        state.setdefault("step", torch.tensor(0.0))
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


class _Rule:
    """AdamW's arithmetic at one step (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(self, group: dict[str, Any], step: float, scratch: "_Scratch") -> None:
        self.scratch = scratch
        self.beta1, self.beta2 = (float(beta) for beta in group["betas"])
        lr = float(group["lr"])
        self.decay = lr * group["weight_decay"]
        self.eps = group["eps"]
        self.maximize = group["maximize"]
        self.step_size = lr / (1 - self.beta1**step)
        self.correction = (1 - self.beta2**step) ** 0.5

    def in_place(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> None:
        """The step in the weight's own dtype: torch's operations in torch's order, so the same bits."""
        weight.mul_(1 - self.decay)
        self._gather(-grad if self.maximize else grad, mean, square)
        denominator = (square.sqrt() / self.correction).add_(self.eps)
        weight.addcdiv_(mean, denominator, value=-self.step_size)

    def stochastic(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, generator: torch.Generator) -> None:
        """The step in fp32, rounded by chance into a bf16 weight."""
        wide, step, denominator = self._widened(weight, grad, mean, square)
        wide.mul_(1 - self.decay).addcdiv_(step, denominator, value=-self.step_size * self.correction)
        copy_stochastic_(weight, wide, generator)

    def compensated(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, compensation: Tensor) -> None:
        """The step in fp32, added to a low-precision weight with what earlier steps left over."""
        wide, step, denominator = self._widened(weight, grad, mean, square)
        change = step.div_(denominator).mul_(-self.step_size * self.correction).add_(wide, alpha=-self.decay)
        add_compensated_(weight, change, compensation)

    def _gather(self, grad: Tensor, mean: Tensor, square: Tensor) -> None:
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)

    def _widened(self, weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weight, the mean and the denominator in fp32; the new moments are rounded to nearest where they live.

        The denominator is torch's times the bias correction, which saves a pass: the step size makes up for it.
        """
        wide, grad32, mean32, square32 = self.scratch.widened(weight, grad, mean, square)
        self._gather(grad32.neg_() if self.maximize else grad32, mean32, square32)
        mean.copy_(mean32)
        square.copy_(square32)
        return wide, mean32, square32.sqrt_().add_(self.eps * self.correction)


class _Scratch:
    """fp32 copies of one piece at a time, in memory that the next piece uses again.

    To allocate buffers of this size afresh costs a CPU more than the arithmetic on them.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def widened(self, *pieces: Tensor) -> list[Tensor]:
        """The `pieces`, all of one shape, in fp32; they last until the next call."""
        if not self._buffers or self._buffers[0].shape != pieces[0].shape or self._buffers[0].device != pieces[0].device:
            self._buffers = [torch.empty_like(piece, dtype=torch.float32) for piece in pieces]
        return [buffer.copy_(piece) for buffer, piece in zip(self._buffers, pieces, strict=True)]


def copy_stochastic_(target: Tensor, source: Tensor, generator: torch.Generator) -> None:
    """Round fp32 `source` into bf16 `target`, up or down by chance, so that the mean of many roundings is `source`.

    A bf16 number is the upper half of an fp32 one. Adding a uniform 16-bit number to the lower half carries into the
    upper half with exactly the probability of the part cut off. `source` is used as scratch and holds the result too.
    """
    noise = _noise(source.numel(), source.device, generator).view(source.shape)
    source.view(torch.int32).add_(noise).bitwise_and_(-(1 << 16))
    target.copy_(source)


def _noise(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """`count` whole numbers, each uniform on [0, 2^16), as int32.

    Drawing is the dearest part of a step, so one 64-bit draw serves eight elements: four with its bits, four with their
    complement, which is as uniform. Only the rounding of elements four apart goes together (antithetic variates).
    """
    words = torch.empty(-(-count // 8), 2, dtype=torch.int64, device=device)
    words[:, 0].random_(-(2**63), None, generator=generator)
    torch.bitwise_not(words[:, 0], out=words[:, 1])
    return words.view(-1).view(torch.uint16)[:count].to(torch.int32)


def add_compensated_(weight: Tensor, change: Tensor, compensation: Tensor) -> None:
    """Add fp32 `change` to a low-precision `weight`, keeping what rounding cuts off in `compensation` (Kahan 1965).

    `change` is used as scratch.
    """
    change.add_(compensation.float())
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
    """Matching pieces of `tensors` (all of one shape); views, not copies."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    size = _CPU_PIECE if tensors[0].device.type == "cpu" else _PIECE
    yield from zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True)
