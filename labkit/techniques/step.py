"""One optimizer step under a precision setting and a checkpointing policy, in the only order that is right.

Clear the gradients; for each micro-batch run forward and loss under autocast and backward outside it; unscale once;
clip; step; update the scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.hardware import device as default_device
from labkit.techniques.checkpointing import Policy, apply_checkpointing
from labkit.techniques.fast_matmul import fast_matmul as fast_matmul_context
from labkit.techniques.precision import Precision, as_precision
from labkit.workload import Workload, to_device


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did."""

    #: Mean loss over the micro-batches, before the step; a scalar tensor, detached.
    loss: Tensor
    #: Norm of the true (unscaled) gradient before clipping; None where nothing is clipped.
    grad_norm: Tensor | None
    #: True when the scaler found an infinite or NaN gradient and left the weights alone.
    skipped: bool


class TrainingStep:
    """One optimizer step of a `Workload`, called with its micro-batches.

    The model is built in fp32 from `seed` (which also seeds torch's global generator) and then cast, so every setting
    starts from the same weights, rounded. Pass `model` to use one that exists already; it is cast and moved in place.

    Example::

        step = TrainingStep(workload, precision="16-mixed", checkpointing="full", clip=1.0)
        result = step(workload.batch(8), workload.batch(8))  # two micro-batches, one optimizer step

    Raises ValueError for an unknown setting or policy, and for a policy on a model without blocks.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        precision: str | Precision = "32-true",
        checkpointing: Policy = "none",
        device: torch.device | str | None = None,
        clip: float | None = None,
        seed: int = 0,
        fast_matmul: bool = True,
        model: nn.Module | None = None,
    ) -> None:
        self.workload = workload
        self.precision = as_precision(precision)
        self.device = torch.device(device) if device is not None else default_device()
        self.clip = clip
        self.fast_matmul = fast_matmul
        self.model = _place(model or _build(workload, seed), self.device, self.precision.parameter_dtype)
        self.blocks: Sequence[nn.Module] = workload.find_blocks(self.model)
        self.checkpointing = apply_checkpointing(self.model, self.blocks, checkpointing)
        self.optimizer = self.precision.optimizer(workload.optimizer(self.model.parameters()), seed=seed)
        self.scaler = self.precision.scaler(self.device)

    def __call__(self, *micro_batches: Any) -> StepResult:
        """Accumulate the gradients of `micro_batches`, equal in size, and take one optimizer step.

        Raises ValueError when called without a batch.
        """
        if not micro_batches:
            raise ValueError("a training step needs at least one batch")
        self.optimizer.zero_grad(set_to_none=True)
        with fast_matmul_context(enabled=self.fast_matmul):
            loss = torch.stack([self._accumulate(batch, len(micro_batches)) for batch in micro_batches]).sum()
        return self._update(loss)

    def forward_loss(self, batch: Any) -> Tensor:
        """The loss of one batch as the setting computes it: moved, cast, under autocast and the fast products."""
        batch = self.precision.cast(to_device(batch, self.device))
        with fast_matmul_context(enabled=self.fast_matmul), self.precision.autocast(self.device):
            return self.workload.loss(self.model, batch)

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on exactly: model, optimizer and scaler."""
        scaler = self.scaler.state_dict() if self.scaler else {}
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scaler": scaler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that `state_dict` of a step with the same setting gave."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])

    def _accumulate(self, batch: Any, count: int) -> Tensor:
        loss = self.forward_loss(batch) / count
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss.detach()

    def _update(self, loss: Tensor) -> StepResult:
        if self.scaler is None:
            norm = self._clip()
            self.optimizer.step()
            return StepResult(loss, norm, skipped=False)
        scale = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # The scale falls exactly when the step was skipped; nothing else in GradScaler's public interface says so.
        return StepResult(loss, norm, skipped=self.scaler.get_scale() < scale)

    def _clip(self) -> Tensor | None:
        if self.clip is None:
            return None
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)


def _build(workload: Workload, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return workload.model()


def _place(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    # `Module.to` fails on fake tensors even where nothing changes, so a model that fits already is left alone.
    fits = all(p.dtype == dtype and p.device.type == device.type for p in model.parameters())
    return model if fits else model.to(device=device, dtype=dtype)
