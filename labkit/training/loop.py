"""Training, from a config to a result: draw, step, look at the loss, now and then validate and save.

    result = train(TrainConfig(workload="tiny", precision="bf16-mixed", steps=150))
    result.history.plot(x="step", y="loss")

How one step is done right under a precision setting (autocast, scaling, clipping) is `labkit.techniques.step`.
"""

import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from labkit.progress import progress
from labkit.techniques.checkpointing import Policy
from labkit.techniques.fast_matmul import fast_matmul
from labkit.techniques.precision import Precision
from labkit.techniques.step import TrainingStep
from labkit.training import checkpoint
from labkit.training.course import workload
from labkit.training.data import Batches
from labkit.workload import Workload

Status = Literal["ok", "diverged", "interrupted"]

#: A run has diverged when this many losses in a row are not finite or above `EXPLOSION` times the first one.
PATIENCE = 5
EXPLOSION = 2.0
#: Windows of the course's texts that the validation loss is taken over.
VALIDATION_WINDOWS = 128
#: Steps left out of the median step time: the first ones allocate memory and warm the caches.
TIMING_WARMUP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Everything that decides a run; raises ValueError for a number out of range."""

    #: A preset's name, or a workload: `labkit.training.workload("tiny", data="synthetic")` or one of your own.
    workload: str | Workload = "tiny"
    precision: str | Precision = "32-true"
    checkpointing: Policy = "none"
    device: torch.device | str | None = None
    #: Seeds the weights, dropout and, with the course's texts, the batches.
    seed: int = 0
    #: On a CPU without low-precision units, multiply as a tensor core does (see `labkit.techniques.fast_matmul`).
    fast_matmul: bool = True

    steps: int = 150
    batch_size: int = 8
    #: Micro-batches of `batch_size` whose gradients are added up before each optimizer step.
    accumulate: int = 1
    #: The highest learning rate; None keeps the one of the workload's optimizer.
    learning_rate: float | None = None
    #: Updates over which the learning rate rises; it then falls along a cosine to `final_rate` times the highest.
    warmup: int = 10
    final_rate: float = 0.1
    #: The norm that gradients are clipped to; None leaves them alone.
    clip: float | None = 1.0

    #: Steps between validation losses; 0 takes only the one at the end.
    evaluate_every: int = 50
    #: Held-out batches; None takes those of the course's text, and none for a workload of your own.
    validation: Sequence[Any] | None = None

    #: The file to save the run in, every `save_every` steps and at the end; None saves nothing.
    save_to: str | Path | None = None
    save_every: int = 50
    #: Go on from the file `save_to` as if the run had never stopped.
    resume: bool = False

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, not {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0 or None, not {value}")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate must be between 0 and 1, not {self.final_rate}")
        if self.resume and self.save_to is None:
            raise ValueError("resume needs save_to, the file to go on from")


_LOWEST = {"steps": 1, "batch_size": 1, "accumulate": 1, "warmup": 0, "evaluate_every": 0, "save_every": 1}


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. A loss that was never taken is NaN."""

    #: `interrupted` by the keyboard: the steps up to there count.
    status: Status
    #: One sentence on why the run diverged; empty otherwise.
    reason: str
    #: One row a step: step, loss, lr, grad_norm (before clipping), scale, skipped, step_ms, tokens_per_s, val_loss.
    history: pd.DataFrame
    #: Mean loss of the last ten steps, in nats per token.
    train_loss: float
    val_loss: float
    #: Median over the steps after the first few.
    step_ms: float
    tokens_per_s: float
    model: nn.Module
    config: TrainConfig


def train(config: TrainConfig) -> RunResult:
    """Train as `config` says. A run that diverges, or that the keyboard interrupts, returns a result like any other.

    Raises ValueError or FileNotFoundError, before the first step, for a config that cannot be run or resumed.
    """
    run = _Run(config)
    if config.resume:
        run.resume()
    status: Status = "ok"
    try:
        with fast_matmul(config.fast_matmul):
            reason = run.to_the_end()
    except KeyboardInterrupt:
        status, reason = "interrupted", ""
    finally:
        run.step.checkpointing.remove()
    return run.result("diverged" if reason else status, reason)


class _Run:
    """A run under way: the training step, where its batches come from, and the history so far."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.save_to = _writable(config.save_to)
        self.workload = workload(config.workload) if isinstance(config.workload, str) else config.workload
        self.step = TrainingStep(
            self.workload,
            precision=config.precision,
            checkpointing=config.checkpointing,
            device=config.device,
            clip=config.clip,
            seed=config.seed,
            fast_matmul=config.fast_matmul,
        )
        self.rates = [config.learning_rate or group["lr"] for group in self.step.optimizer.param_groups]
        self.batches = self.workload.batch if isinstance(self.workload.batch, Batches) else None
        if self.batches:
            self.batches.restart(config.seed)
        self.validation = self._validation()
        self.history: list[dict[str, Any]] = []
        # Counts what the scaler did not skip: a step that changed nothing uses up no warm-up.
        self.updates = 0

    def to_the_end(self) -> str:
        """Take the steps that are left; returns why the run diverged, or an empty text."""
        config, reason = self.config, ""
        with progress(total=config.steps, label=f"{self.workload.name} {self.step.precision.name}") as bar:
            bar.update(len(self.history))
            while len(self.history) < config.steps and not reason:
                self._take_step()
                reason = divergence([row["loss"] for row in self.history[-PATIENCE:]], start=self.history[0]["loss"])
                if self._due(config.evaluate_every):
                    self._evaluate()
                if self._due(config.save_every):
                    self.save()
                bar.set_postfix(loss=f"{self.history[-1]['loss']:.3f}", refresh=False)
                bar.update()
        if math.isnan(self.history[-1]["val_loss"]):
            self._evaluate()
        if not math.isfinite(self.history[-1]["loss"]):
            return reason or f"the loss of the last step is {self.history[-1]['loss']}"
        if not reason:
            self.save()
        return reason

    def _take_step(self) -> None:
        rate = self._set_rate()
        scale = self.step.scaler.get_scale() if self.step.scaler else math.nan
        begin = time.perf_counter()
        batches = [self.workload.batch(self.config.batch_size) for _ in range(self.config.accumulate)]
        done = self.step(*batches)
        loss = float(done.loss)  # waits for the device, so that the time is the whole step's
        seconds = time.perf_counter() - begin
        self.updates += not done.skipped
        self.history.append(
            {
                "step": len(self.history) + 1,
                "loss": loss,
                "lr": rate,
                "grad_norm": math.nan if done.grad_norm is None else float(done.grad_norm),
                "scale": scale,
                "skipped": done.skipped,
                "step_ms": seconds * 1e3,
                "tokens_per_s": sum(map(token_count, batches)) / seconds,
                "val_loss": math.nan,
            }
        )

    def _set_rate(self) -> float:
        factor = schedule(self.updates, total=self.config.steps, warmup=self.config.warmup, final=self.config.final_rate)
        for group, rate in zip(self.step.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        return self.rates[0] * factor

    def _due(self, every: int) -> bool:
        return every > 0 and len(self.history) % every == 0

    def _validation(self) -> list[Any]:
        if self.config.validation is not None:
            return list(self.config.validation)
        if self.batches is None:
            return []
        parts = [tensor.split(self.config.batch_size) for tensor in self.batches.validation(VALIDATION_WINDOWS)]
        return list(zip(*parts, strict=True))

    def _evaluate(self) -> None:
        self.history[-1]["val_loss"] = mean_loss(self.step, self.validation)

    def save(self) -> None:
        """Put the run into its file, if it has one; weights that are not finite do not replace good ones."""
        if self.save_to is not None and math.isfinite(self.history[-1]["loss"]):
            checkpoint.save(self.save_to, self._state())

    def resume(self) -> None:
        """Take the run up from its file; ValueError when the file is from a run of another kind."""
        assert self.save_to is not None
        state = checkpoint.load(self.save_to)
        for name, value in self._kind().items():
            if state["kind"][name] != value:
                raise ValueError(f"{self.save_to} is of a run with {name} {state['kind'][name]!r}, not {value!r}")
        self.step.load_state_dict(state["step"])
        if self.batches:
            self.batches.load_state_dict(state["batches"])
        self.history = state["history"]
        self.updates = sum(not row["skipped"] for row in self.history)
        _set_random_state(self.step.device, state["random"])

    def _state(self) -> dict[str, Any]:
        return {
            "kind": self._kind(),
            "step": self.step.state_dict(),
            "batches": self.batches.state_dict() if self.batches else {},
            "history": self.history,
            "random": _random_state(self.step.device),
        }

    def _kind(self) -> dict[str, Any]:
        """What must be the same for a run to go on as if it had never stopped."""
        config = self.config
        return {
            "workload": self.workload.name,
            "parameters": sum(parameter.numel() for parameter in self.step.model.parameters()),
            "text": self.batches.name if self.batches else None,
            "precision": self.step.precision.name,
            "learning rates": self.rates,
            "clip": config.clip,
            "seed": config.seed,
            "batch_size": config.batch_size,
            "accumulate": config.accumulate,
        }

    def result(self, status: Status, reason: str) -> RunResult:
        columns = ["step", "loss", "lr", "grad_norm", "scale", "skipped", "step_ms", "tokens_per_s", "val_loss"]
        history = pd.DataFrame(self.history, columns=columns)
        timed = history.iloc[TIMING_WARMUP:] if len(history) > TIMING_WARMUP else history
        return RunResult(
            status=status,
            reason=reason,
            history=history,
            train_loss=float(history["loss"].tail(10).mean(skipna=False)),
            val_loss=float(history["val_loss"].iloc[-1]) if len(history) else math.nan,
            step_ms=float(timed["step_ms"].median()),
            tokens_per_s=float(timed["tokens_per_s"].median()),
            model=self.step.model,
            config=self.config,
        )


def schedule(update: int, *, total: int, warmup: int, final: float) -> float:
    """The learning rate before `update` (from 0) as a part of the highest: up a straight line, then down a cosine to `final`.

    The first update has 1 / (warmup + 1) of it, update `warmup` all of it, and update `total` would have `final`.
    """
    if update < warmup:
        return (update + 1) / (warmup + 1)
    progress = (update - warmup) / max(total - warmup, 1)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def divergence(recent: Sequence[float], *, start: float) -> str:
    """One sentence on why `recent` losses mean that a run which began at `start` has diverged, or an empty text."""
    limit = EXPLOSION * abs(start) if math.isfinite(start) else math.inf
    if len(recent) < PATIENCE or any(loss <= limit for loss in recent):
        return ""
    bad = f"not finite or above {EXPLOSION:g} times the first, {start:.3g}"
    return f"the last {len(recent)} losses were {bad}; the latest is {recent[-1]:.3g}"


@torch.no_grad()
def mean_loss(step: TrainingStep, batches: Sequence[Any]) -> float:
    """The mean loss over `batches`, each weighted with its tokens, with dropout off; NaN where there are none."""
    step.model.eval()
    losses = [float(step.forward_loss(batch)) for batch in batches]
    step.model.train()
    sizes = [token_count(batch) for batch in batches]
    return sum(map(operator.mul, losses, sizes)) / sum(sizes) if sizes else math.nan


def token_count(batch: Any) -> int:
    """The tokens in `batch`: the elements of its first tensor when those are ids, else the rows of it."""
    first = next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    return len(first) if first.is_floating_point() else first.numel()


def _writable(path: str | Path | None) -> Path | None:
    if path is not None and not Path(path).parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent} to save {Path(path).name} in")
    return None if path is None else Path(path)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def _set_random_state(device: torch.device, state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
