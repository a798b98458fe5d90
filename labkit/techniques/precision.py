"""The precision settings of the course, as one table of data.

A setting answers four questions: which dtype the parameters have, which dtype autocast runs matrix products in, whether
the loss is scaled, and how the optimizer adds an update to a weight. `TrainingStep` turns a setting into a step.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from labkit.techniques import optimizers

#: How the optimizer adds an update to a weight: rounded to nearest, rounded up or down by chance, or compensated.
Update = Literal["plain", "stochastic", "kahan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """One row of `PRECISIONS`: what is stored, what is computed in, and what is done about rounding and underflow."""

    name: str
    #: dtype of the parameters, and with them of the gradients and the optimizer's moments.
    parameter_dtype: torch.dtype = torch.float32
    #: dtype of the products under autocast; None runs every operation in the type of its inputs.
    autocast_dtype: torch.dtype | None = None
    #: Whether the loss is multiplied by a dynamic scale so that small fp16 gradients survive.
    scaled: bool = False
    update: Update = "plain"

    def autocast(self, device: torch.device | str) -> AbstractContextManager[Any]:
        """The context for the forward pass and the loss: autocast, or nothing where every operation runs as it is."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(torch.device(device).type, dtype=self.autocast_dtype)

    def scaler(self, device: torch.device | str, **options: Any) -> torch.amp.GradScaler | None:
        """A `torch.amp.GradScaler` made with `options`, or None where the loss is not scaled."""
        return torch.amp.GradScaler(torch.device(device).type, **options) if self.scaled else None

    def optimizer(self, base: Optimizer, *, seed: int = 0) -> Optimizer:
        """`base` itself, or its stochastic-rounding or Kahan twin over the same parameter groups.

        Raises TypeError when a twin is needed and `base` is not torch's AdamW.
        """
        return base if self.update == "plain" else optimizers.like(base, update=self.update, seed=seed)

    def cast(self, batch: Any) -> Any:
        """`batch` with its floating-point tensors in the parameters' dtype; under autocast it stays as it is."""
        if self.autocast_dtype is not None:
            return batch
        return tree_map_only(Tensor, self._cast_tensor, batch)

    def _cast_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.parameter_dtype) if tensor.is_floating_point() else tensor


def _settings(*rows: Precision) -> dict[str, Precision]:
    return {row.name: row for row in rows}


#: Every setting by name. The names of the first six are Lightning's.
PRECISIONS: dict[str, Precision] = _settings(
    Precision(name="64-true", parameter_dtype=torch.float64),
    Precision(name="32-true"),
    Precision(name="bf16-true", parameter_dtype=torch.bfloat16),
    Precision(name="16-true", parameter_dtype=torch.float16),
    Precision(name="bf16-mixed", autocast_dtype=torch.bfloat16),
    Precision(name="16-mixed", autocast_dtype=torch.float16, scaled=True),
    Precision(name="16-mixed-unscaled", autocast_dtype=torch.float16),
    Precision(name="bf16-true-sr", parameter_dtype=torch.bfloat16, update="stochastic"),
    Precision(name="bf16-true-kahan", parameter_dtype=torch.bfloat16, update="kahan"),
)


def as_precision(setting: str | Precision) -> Precision:
    """The setting of that name, or `setting` itself; raises ValueError listing the names."""
    if isinstance(setting, Precision):
        return setting
    if setting not in PRECISIONS:
        raise ValueError(f"precision {setting!r} is not one of: {', '.join(PRECISIONS)}")
    return PRECISIONS[setting]
