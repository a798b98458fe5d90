"""What each device holds when one model's training state is spread over several: the stages of ZeRO (arXiv:1910.02054).

Data parallel training gives every device the whole model and a part of the batch. The stages take turns at spreading what is
then held many times: optimizer state (1), gradients as well (2), parameters as well (3, torch's `fully_shard`). Activations
belong to a device's own examples and stay where they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import pandas as pd
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from labkit.memory.prediction import Prediction
from labkit.memory.trace import cast_fake
from labkit.memory.tracker import CATEGORIES
from labkit.techniques.precision import Precision, as_precision
from labkit.workload import Workload

#: What each stage spreads over the devices; the rest is held by every one of them.
STAGES: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "parameters"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The training state of one device of several, in bytes: the fullest device's, where the rows do not divide evenly."""

    devices: int
    stage: int
    parameters: int
    gradients: int
    optimizer: int
    #: What is whole on every device for a while although it is spread: see `shares`.
    gathered: int

    @property
    def held(self) -> int:
        """What stays on the device from step to step and, at its most, between backward and the optimizer's step."""
        return self.parameters + self.gradients + self.optimizer


def shares(workload: Workload, devices: int, *, stage: int = 3, precision: str | Precision = "32-true") -> Shares:
    """What the fullest of `devices` holds of the parameters, gradients and optimizer state of `workload`.

    Tensors are cut by rows, as `torch.distributed.fsdp.fully_shard` cuts them: a device gets ceil(rows / devices) of each.
    `gathered` estimates what is whole on top: at stage 2 the gradients of one group of parameters; at stage 3 also
    the parameters outside the blocks, and of two blocks, the one at work and the next, fetched ahead. Optimizer state that is
    not shaped like its parameter (step counters, factored moments) is not counted. Nothing is allocated.

    Raises ValueError for an unknown stage or precision, or fewer than one device.
    """
    if stage not in STAGES:
        raise ValueError(f"stage {stage!r} is unknown; choose 0 (nothing spread), 1 (optimizer), 2 (gradients too) or 3 (all)")
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"devices must be a whole number of at least 1, not {devices!r}")
    setting = as_precision(precision)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = workload.model()
        cast_fake(model, setting.parameter_dtype)
        moments = _moments(model, workload, setting)
    parameters = [p for p in model.parameters() if p.requires_grad]
    spread = STAGES[stage]

    def size(kind: str, tensors: Iterable[Tensor]) -> int:
        return sum(_cut(t, devices if kind in spread else 1) for t in tensors)

    return Shares(
        devices=devices,
        stage=stage,
        parameters=size("parameters", model.parameters()),
        gradients=size("gradients", parameters),
        optimizer=size("optimizer", moments),
        gathered=_gathered(model, workload.find_blocks(model), stage) if devices > 1 else 0,
    )


def _moments(model: nn.Module, workload: Workload, setting: Precision) -> list[Tensor]:
    """The optimizer's tensors that are shaped like their parameter; a step counter is a number on the host."""
    optimizer = setting.optimizer(workload.optimizer(model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    return [
        value
        for parameter, state in optimizer.state.items()
        for value in state.values()
        if torch.is_tensor(value) and value.shape == parameter.shape and value.dim()
    ]


def _cut(tensor: Tensor, devices: int) -> int:
    """Bytes of the first and largest of `devices` parts of `tensor`, cut by rows."""
    if tensor.dim() == 0:
        return tensor.nbytes
    rows, *rest = tensor.shape
    return -(-rows // devices) * prod(rest) * tensor.element_size()


def _gathered(model: nn.Module, blocks: Sequence[nn.Module], stage: int) -> int:
    if stage < 2:
        return 0
    sizes = sorted((_bytes(block.parameters()) for block in blocks), reverse=True)
    outside = _bytes(model.parameters()) - sum(sizes)
    gradients = max([outside, *sizes[:1]])
    return gradients if stage == 2 else gradients + outside + sum(sizes[:2])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def spread(prediction: Prediction, workload: Workload, devices: int, *, stage: int = 3) -> dict[str, int]:
    """The predicted step of `workload` on one device of several: bytes by category at its peak, "gathered" among them.

    The batch of `prediction` is what each device gets. Every moment of its timeline keeps its activations, temporaries and
    inputs and holds a share of the rest; what the optimizer's own step needs shrinks with its share. Tensors alone: no
    rounding, segments or context, not the buffers that a collective sends from, and not a block that is let go late: such
    timing moves a real peak by a block or so from run to run. Raises ValueError as `shares` does.
    """
    whole = shares(workload, 1, stage=0, precision=prediction.precision)
    share = shares(workload, devices, stage=stage, precision=prediction.precision)
    timeline = prediction.timeline[list(CATEGORIES)].copy()
    updating = prediction.timeline["phase"] == "optimizer"
    if "parameters" in STAGES[stage]:
        # Subtracted: the model's tables are in this category too, and stay whole.
        timeline["parameters"] -= whole.parameters - share.parameters
    for name in set(STAGES[stage]) - {"parameters"}:
        timeline[name] = _part(timeline[name], getattr(share, name), getattr(whole, name))
    if "optimizer" in STAGES[stage]:
        shrunk = _part(timeline["temporaries"], share.optimizer, whole.optimizer)
        timeline["temporaries"] = timeline["temporaries"].where(~updating, shrunk)
    timeline["gathered"] = share.gathered * ~updating
    top = int(timeline.sum(axis=1).to_numpy().argmax())
    return {name: int(size) for name, size in timeline.iloc[top].items()}


def _part(sizes: pd.Series, part: int, whole: int) -> pd.Series:
    """`sizes` times part / whole, in Python's integers: the product of two byte counts does not fit 64 bits."""
    return sizes.map(lambda size: size * part // max(whole, 1))
