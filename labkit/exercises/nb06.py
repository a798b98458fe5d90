"""Exercises of notebook 06: autocast's types, a dynamic scaler, the right order of a step, the module that overflows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.exercises.core import Exercise, Wrong, expect

# 06-dtypes


def dtypes_under_autocast() -> dict[str, str]:
    """What each call gives under `torch.autocast("cpu", dtype=torch.bfloat16)` with fp32 inputs: "fp32" or "bf16"."""
    return {
        "x @ x": "bf16",
        "x + x": "fp32",
        "F.gelu(x @ x)": "bf16",
        "(x @ x).softmax(-1)": "bf16",
        "F.mse_loss(x @ x, x @ x)": "fp32",
        "(x @ x) + x": "fp32",
    }


_CALLS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "x @ x": (lambda x: x @ x, "a product is on the low list: its inputs are cast"),
    "x + x": (lambda x: x + x, "an addition is on no list, so it runs in the type of its inputs"),
    "F.gelu(x @ x)": (lambda x: F.gelu(x @ x), "gelu is on no list and takes what the product gives it"),
    "(x @ x).softmax(-1)": (lambda x: (x @ x).softmax(-1), "on the CPU softmax is on no list; on CUDA it is on the fp32 list"),
    "F.mse_loss(x @ x, x @ x)": (lambda x: F.mse_loss(x @ x, x @ x), "losses are on the fp32 list"),
    "(x @ x) + x": (lambda x: (x @ x) + x, "on no list: torch's own promotion makes bf16 + fp32 an fp32"),
}


def _check_dtypes(answer: Callable[[], dict[str, str]]) -> None:
    got = answer()
    expect(isinstance(got, dict), f"a dict from each call to its dtype is asked for, not {type(got).__name__}")
    x = torch.ones(4, 4)
    for text, (call, why) in _CALLS.items():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want = {torch.float32: "fp32", torch.bfloat16: "bf16"}[call(x).dtype]
        expect(got.get(text) == want, f"{text} gives {want} ({why}); your answer is {got.get(text)!r}")


def _all_low() -> dict[str, str]:
    return dict.fromkeys(_CALLS, "bf16")


def _as_on_cuda() -> dict[str, str]:
    return dtypes_under_autocast() | {"(x @ x).softmax(-1)": "fp32"}


def _low_wins() -> dict[str, str]:
    return dtypes_under_autocast() | {"(x @ x) + x": "bf16"}


# 06-scaler


def next_scale(
    scale: float, good_steps: int, overflow: bool, *, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> tuple[float, int]:
    """The scale and the count of good steps in a row after a step that did or did not overflow."""
    if overflow:
        return scale * backoff, 0
    if good_steps + 1 == interval:
        return scale * growth, 0
    return scale, good_steps + 1


def _check_scaler(answer: Callable[..., tuple[float, int]]) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scale, good = 1024.0, 0
    for step, overflow in enumerate([False, False, True, False, False, False, False, False, False, True, True, False]):
        before = scale
        parameter.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.scale(parameter.sum() * 0)  # the scaler makes its scale on first use
        scaler.step(optimizer)
        scaler.update()
        scale, good = answer(scale, good, overflow, interval=3)
        happened = "an overflow" if overflow else "a good step"
        expect(
            scale == scaler.get_scale(),
            f"step {step}, {happened} at scale {before:g} (growth interval 3): GradScaler goes on with "
            f"{scaler.get_scale():g}, yours with {scale:g}",
        )
    got = answer(8.0, 0, True, backoff=0.25)
    expect(got[0] == 2.0, f"with backoff 0.25 an overflow takes scale 8 to 2, yours goes to {got[0]:g}")


def _never_grows(scale: float, good_steps: int, overflow: bool, **options: Any) -> tuple[float, int]:
    return (scale * options.get("backoff", 0.5), 0) if overflow else (scale, good_steps + 1)


def _keeps_counting(
    scale: float, good_steps: int, overflow: bool, *, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> tuple[float, int]:
    if overflow:
        return scale * backoff, good_steps
    return (scale * growth, 0) if good_steps + 1 >= interval else (scale, good_steps + 1)


def _grows_each_time(
    scale: float, good_steps: int, overflow: bool, *, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> tuple[float, int]:
    return (scale * backoff, 0) if overflow else (scale * growth, good_steps + 1)


def _one_late(
    scale: float, good_steps: int, overflow: bool, *, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> tuple[float, int]:
    if overflow:
        return scale * backoff, 0
    return (scale * growth, 0) if good_steps == interval else (scale, good_steps + 1)


# 06-order


def accumulated_step(model, optimizer, scaler, batches, loss_function, clip):
    """One optimizer step over `batches`, equal in size: accumulate, then clip the true gradient to the norm `clip`."""
    optimizer.zero_grad()
    for batch in batches:
        scaler.scale(loss_function(model, batch) / len(batches)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


def _quadratic(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def _reference_weights(batches: Sequence[Tensor], clip: float, steps: int) -> Tensor:
    """The weight after plain fp32 steps without a scaler."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(_quadratic(model, batch) for batch in batches).div(len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.weight.detach()


class _Watched(torch.amp.GradScaler):
    """A scaler that counts the calls of each of its methods."""

    def __init__(self, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.calls: list[str] = []

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        self.calls.append("step")
        return super().step(optimizer, *args, **options)

    def update(self, new_scale: Any = None) -> None:
        self.calls.append("update")
        super().update(new_scale)


def _check_order(answer: Callable[..., None]) -> None:
    torch.manual_seed(1)
    batches = [torch.randn(8, 4) for _ in range(4)]
    for clip, what in ((1e9, "without real clipping"), (0.05, "clipped to a norm of 0.05")):
        torch.manual_seed(0)
        model = nn.Linear(4, 4, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = _Watched(init_scale=2.0**12)
        for _ in range(3):
            answer(model, optimizer, scaler, batches, _quadratic, clip)
        for name in ("step", "update"):
            count = scaler.calls.count(name)
            expect(
                count == 3,
                f"scaler.{name} is to be called once an optimizer step; in three steps yours called it {count} times",
            )
        want = _reference_weights(batches, clip, 3)
        off = (model.weight.detach() - want).abs().max().item()
        expect(
            off < 1e-5,
            f"{what}, three steps end {off:.2g} away from the same steps without a scaler: look at the division by the number "
            "of batches, at what has been cleared, and at whether the gradient is true or still scaled when it is clipped",
        )


def _clips_scaled(
    model: nn.Module, optimizer: Any, scaler: Any, batches: Sequence[Tensor], loss_function: Any, clip: float
) -> None:
    optimizer.zero_grad()
    for batch in batches:
        scaler.scale(loss_function(model, batch) / len(batches)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


def _unscales_each_batch(
    model: nn.Module, optimizer: Any, scaler: Any, batches: Sequence[Tensor], loss_function: Any, clip: float
) -> None:
    optimizer.zero_grad()
    for batch in batches:
        scaler.scale(loss_function(model, batch) / len(batches)).backward()
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


def _forgets_to_divide(
    model: nn.Module, optimizer: Any, scaler: Any, batches: Sequence[Tensor], loss_function: Any, clip: float
) -> None:
    optimizer.zero_grad()
    for batch in batches:
        scaler.scale(loss_function(model, batch)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


def _updates_each_batch(
    model: nn.Module, optimizer: Any, scaler: Any, batches: Sequence[Tensor], loss_function: Any, clip: float
) -> None:
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(loss_function(model, batch)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()


def _never_clears(
    model: nn.Module, optimizer: Any, scaler: Any, batches: Sequence[Tensor], loss_function: Any, clip: float
) -> None:
    for batch in batches:
        scaler.scale(loss_function(model, batch) / len(batches)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


# 06-schedule


def scheduled_step(optimizer, scaler, scheduler):
    """Step the optimizer through the scaler, and the scheduler only where the optimizer really stepped."""
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


def _check_schedule(answer: Callable[..., None]) -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    # A chain of LambdaLR would warn; a plain counter shows the same.
    scheduler = _Counter()
    taken = 0
    for step, gradient in enumerate([1.0, float("inf"), float("nan"), 1.0, 1.0, float("inf"), 1.0]):
        before = parameter.detach().clone()
        scaler.scale(parameter.sum() * 0)
        parameter.grad = torch.full((1,), gradient)
        answer(optimizer, scaler, scheduler)
        moved = not torch.equal(before, parameter.detach())
        finite = gradient == gradient and abs(gradient) != float("inf")
        expect(moved == finite, f"step {step} has the gradient {gradient:g}: the weight is {'' if finite else 'not '}to move")
        taken += finite
        expect(
            scheduler.steps == taken,
            f"after step {step} (gradient {gradient:g}) the optimizer has stepped {taken} times and the scheduler "
            f"{scheduler.steps} times",
        )


class _Counter:
    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


def _always_schedules(optimizer: Any, scaler: Any, scheduler: Any) -> None:
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


def _only_without_growth(optimizer: Any, scaler: Any, scheduler: Any) -> None:
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() == before:
        scheduler.step()


def _asks_too_early(optimizer: Any, scaler: Any, scheduler: Any) -> None:
    before = scaler.get_scale()
    scaler.step(optimizer)
    if scaler.get_scale() >= before:
        scheduler.step()
    scaler.update()


def _past_the_scaler(optimizer: Any, scaler: Any, scheduler: Any) -> None:
    optimizer.step()
    scheduler.step()


# 06-scale


def largest_scale(gradients: list[torch.Tensor]) -> float:
    """The largest power of two, from 1 to 2^40, that no element of `gradients` (fp32) times it overflows fp16."""
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    scale = 1.0
    while scale < 2.0**40 and bool(torch.isfinite(torch.tensor(2 * scale * largest).half())):
        scale *= 2
    return scale


def _check_scale(answer: Callable[[Sequence[Tensor]], float]) -> None:
    for values, why in (
        (([1.0, -0.25], [2.0**-20]), "the largest magnitude decides"),
        (([-3.0], [0.5]), "a negative gradient overflows too"),
        (([2.0**-9], [65_519 * 2.0**-16]), "65,519 rounds to 65,504, the largest fp16 number"),
        (([65_520 * 2.0**-16],), "65,520 is the first that rounds to infinity"),
        (([2.0**-40], [0.0]), "2^40 is the largest scale that counts here"),
    ):
        gradients = [torch.tensor(each) for each in values]
        got = answer(gradients)
        fits = bool(torch.isfinite(torch.cat(gradients).mul(got).half()).all())
        more = got >= 2.0**40 or bool(torch.isfinite(torch.cat(gradients).mul(2 * got).half()).all())
        shown = ", ".join(f"{value:g}" for gradient in gradients for value in gradient.tolist())
        expect(fits, f"gradients {shown}: at your scale {got:g} one of them overflows ({why})")
        expect(got >= 2.0**40 or not more, f"gradients {shown}: {got:g} is safe, but so is twice that ({why})")


def _without_abs(gradients: Sequence[Tensor]) -> float:
    return largest_scale([gradient.clamp_min(2.0**-30) for gradient in gradients])


def _first_tensor(gradients: Sequence[Tensor]) -> float:
    return largest_scale(gradients[:1])


def _default_scale(gradients: Sequence[Tensor]) -> float:
    return 65_536.0


def _by_the_smallest(gradients: Sequence[Tensor]) -> float:
    """Lifts the smallest gradient to fp16's smallest number and looks no further."""
    smallest = min(float(gradient[gradient != 0].abs().min()) for gradient in gradients if bool((gradient != 0).any()))
    scale = 1.0
    while scale < 2.0**40 and scale * smallest < 2.0**-24:
        scale *= 2
    return scale


# 06-overflow


def culprit(model: nn.Module, x: torch.Tensor) -> str:
    """The dotted name of the first submodule of `model` whose output has an infinity or NaN; "" where there is none."""
    found: list[str] = []

    def watch(name: str):
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            if not torch.isfinite(output).all():
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


class _Times(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class _Backwards(nn.Module):
    """Runs its parts in another order than it lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.late = _Times(2.0)
        self.early = _Times(1000.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.late(self.early(x))


def _models() -> list[tuple[nn.Module, str]]:
    inner = nn.Sequential(_Times(10.0), _Times(300.0))
    return [
        (nn.Sequential(_Times(2.0), _Times(300.0), _Times(0.0)), "1"),
        (nn.Sequential(_Times(0.5), nn.Sequential(_Times(2.0), inner)), "1.1.1"),
        (_Backwards(), "early"),
        (nn.Sequential(_Times(1.0), nn.ReLU()), ""),
    ]


def _check_overflow(answer: Callable[[nn.Module, Tensor], str]) -> None:
    x = torch.tensor([100.0, -300.0], dtype=torch.float16)
    for model, want in _models():
        x_here = x if want != "" else x / 10
        got = answer(model, x_here.clone())
        names = [name for name, module in model.named_modules() if name]
        expect(
            got == want,
            f"of the modules {', '.join(names)}, run on {x_here.tolist()} in fp16, "
            f"{repr(want) + ' is the first to overflow' if want else 'none overflows, so the answer is an empty text'}; "
            f"your function gave {got!r}",
        )
        hooked = any(module._forward_hooks for module in model.modules())
        expect(not hooked, "your hooks are still on the model afterwards; remove their handles")


def _last_found(model: nn.Module, x: Tensor) -> str:
    found = ""

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            nonlocal found
            if not torch.isfinite(output).all():
                found = name

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    model(x)
    for handle in handles:
        handle.remove()
    return found


def _only_nan(model: nn.Module, x: Tensor) -> str:
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: found.append(name) if torch.isnan(output).any() else None

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    model(x)
    for handle in handles:
        handle.remove()
    return found[0] if found else ""


def _children_in_order(model: nn.Module, x: Tensor) -> str:
    for name, child in model.named_children():
        x = child(x)
        if not torch.isfinite(x).all():
            return name
    return ""


def _leaves_hooks(model: nn.Module, x: Tensor) -> str:
    answer = culprit(model, x)
    model.register_forward_hook(lambda *_: None)
    return answer


EXERCISES = [
    Exercise(
        id="06-dtypes",
        solution=dtypes_under_autocast,
        check=_check_dtypes,
        hints=(
            "Ask of each call: is it on the low list, on the fp32 list, or on none?",
            "On no list means: autocast does nothing, and torch's ordinary rules hold. What is bf16 + fp32?",
            'Run them: `with torch.autocast("cpu", dtype=torch.bfloat16): print((x @ x).dtype)`.',
        ),
        wrong=(
            Wrong(_all_low, "believes autocast makes everything low", "x + x gives fp32"),
            Wrong(_as_on_cuda, "takes CUDA's list for the CPU's", "(x @ x).softmax(-1) gives bf16"),
            Wrong(_low_wins, "believes the low type wins in a mixed sum", "(x @ x) + x gives fp32"),
        ),
        note=(
            "Three cases are enough: low list, fp32 list, no list. Most element-wise calls are on none, so the type that comes "
            "out of a product travels on until something asks for fp32."
        ),
    ),
    Exercise(
        id="06-scaler",
        solution=next_scale,
        check=_check_scaler,
        hints=(
            "Two things can happen: an overflow, or a good step. After how many good steps in a row is it time to grow?",
            "An overflow multiplies by `backoff` and starts the count again. So does growth.",
            "Count this step too: it is time to grow when `good_steps + 1 == interval`.",
        ),
        wrong=(
            Wrong(_never_grows, "only ever goes down", "GradScaler goes on with"),
            Wrong(_keeps_counting, "keeps the count of good steps over an overflow", "GradScaler goes on with"),
            Wrong(_grows_each_time, "grows after every good step", "GradScaler goes on with"),
            Wrong(_one_late, "grows one step late", "GradScaler goes on with"),
        ),
        note=(
            "The scale is not tuned to a target. It feels its way up to the first overflow, falls back by half and tries again "
            "after `interval` good steps: one lost step in 2,000 is the price for always being near the top."
        ),
    ),
    Exercise(
        id="06-order",
        solution=accumulated_step,
        check=_check_order,
        hints=(
            "Which parts happen once a micro-batch, and which once an optimizer step?",
            "Once a micro-batch: loss, division, scale, backward. Clipping needs the true gradient: what has to come before?",
            "`zero_grad`; for each batch `scaler.scale(loss / len(batches)).backward()`; then `unscale_`, "
            "`clip_grad_norm_`, `scaler.step`, `scaler.update`, once each.",
        ),
        wrong=(
            Wrong(_clips_scaled, "clips the scaled gradient", "still scaled when it is clipped"),
            Wrong(_unscales_each_batch, "unscales after each micro-batch", "unscale_"),
            Wrong(_forgets_to_divide, "adds the losses up instead of averaging", "the division by the number of batches"),
            Wrong(_updates_each_batch, "takes a step for each micro-batch", "once an optimizer step"),
            Wrong(_never_clears, "keeps the gradients of the last step", "what has been cleared"),
        ),
        note=(
            "Scaling is linear, so it commutes with adding up gradients and with nothing else. Everything that looks at the "
            "size of the gradient (clipping, logging, skipping) has to stand after `unscale_`."
        ),
    ),
    Exercise(
        id="06-schedule",
        solution=scheduled_step,
        check=_check_schedule,
        hints=(
            "`scaler.step` does not say whether it stepped. What changes when it did not?",
            "After a skipped step `update` lowers the scale. Look at it before and after.",
            "`before = scaler.get_scale()`, step, update, and `scheduler.step()` only if the scale did not fall.",
        ),
        wrong=(
            Wrong(_always_schedules, "steps the scheduler every time", "the optimizer has stepped"),
            Wrong(_only_without_growth, "takes growth for a skipped step", "the optimizer has stepped"),
            Wrong(_asks_too_early, "looks at the scale before update", "the optimizer has stepped"),
            Wrong(_past_the_scaler, "steps the optimizer past the scaler", "the weight is not to move"),
        ),
        note=(
            "torch warns when the scheduler steps before the optimizer ever did, which is how most people meet a skipped first "
            "step. The comparison has to allow for growth: equal or larger means that the step was taken."
        ),
    ),
    Exercise(
        id="06-scale",
        solution=largest_scale,
        check=_check_scale,
        hints=(
            "Overflow is decided by a single element. Which one?",
            "Take the largest magnitude over all tensors, and double the scale as long as it still fits.",
            "`torch.isfinite(torch.tensor(2 * scale * largest).half())` says whether twice the scale is safe.",
        ),
        wrong=(
            Wrong(_without_abs, "forgets the sign", "a negative gradient overflows too"),
            Wrong(_first_tensor, "looks at the first tensor only", "overflows"),
            Wrong(_default_scale, "takes GradScaler's first scale for a safe one", "one of them overflows"),
            Wrong(_by_the_smallest, "scales until the smallest gradient survives", "so is twice that"),
        ),
        note=(
            "This is the static scale that the first fp16 runs were trained with. It fits the batch it was measured on; the "
            "dynamic scaler exists because the next batch may be different."
        ),
    ),
    Exercise(
        id="06-overflow",
        solution=culprit,
        check=_check_overflow,
        hints=(
            "Every module can call a function of yours after its forward: `register_forward_hook`.",
            "Hooks fire in the order in which modules finish. Keep the names of those whose output is not finite, in order.",
            "`register_forward_hook` returns a handle; call `.remove()` on it afterwards. The first name kept is the answer.",
        ),
        wrong=(
            Wrong(_last_found, "names the last module that shows it", "first to overflow"),
            Wrong(_only_nan, "looks for NaN only; an infinity comes first", "first to overflow"),
            Wrong(_children_in_order, "runs the children in the order of the list", "first to overflow"),
            Wrong(_leaves_hooks, "leaves its hooks behind", "remove their handles"),
        ),
        note=(
            "The inner module finishes before the one around it, so the first name is also the deepest. "
            "`labkit.techniques.probes.first_nonfinite` goes one step further and names the operation, in backward too."
        ),
    ),
]
