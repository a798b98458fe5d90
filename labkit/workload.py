"""What is trained, as data: how to make a model, a batch, a loss and an optimizer.

Every technique, the meter, the planner and the experiment take a `Workload`, so they work on any model alike.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """torch's AdamW with a learning rate that suits small transformers; the default optimizer of a `Workload`."""
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass(frozen=True)
class Workload:
    """How to make one training step.

    Example (any model will do)::

        Workload(
            model=lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)),
            batch=lambda n: (torch.randn(n, 8), torch.randn(n, 1)),
            loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
    """

    #: Makes the model, in the default dtype on the default device.
    model: Callable[[], nn.Module]
    #: Makes a batch of the given size: a tensor, or a tuple, list or dict of tensors.
    batch: Callable[[int], Any]
    #: Computes a scalar loss from the model and a batch.
    loss: Callable[[nn.Module, Any], Tensor]
    #: Makes the optimizer from the model's parameters.
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = adamw
    #: The chain of blocks that checkpointing works on: a function of the model, the dotted name of a ModuleList or
    #: Sequential, or None to take the longest run of equal modules.
    blocks: Callable[[nn.Module], Sequence[nn.Module]] | str | None = None
    name: str = "workload"

    def find_blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks of `model` to checkpoint, in the order they run; an empty list where there is no run of two.

        Raises ValueError when the name in `blocks` is not a container of `model`.
        """
        if callable(self.blocks):
            return list(self.blocks(model))
        if self.blocks is None:
            return longest_run(model)
        try:
            return list(model.get_submodule(self.blocks).children())
        except AttributeError:
            names = [name for name, module in model.named_modules() if name and len(list(module.children())) > 1]
            raise ValueError(f"blocks {self.blocks!r} names no module of the model; containers: {names}") from None


def longest_run(model: nn.Module) -> list[nn.Module]:
    """The longest run of neighbours of one class inside any Sequential or ModuleList of `model` (first of equals).

    Only modules with parameters count: a run of activations is nothing to checkpoint.
    """
    best: list[nn.Module] = []
    for container in model.modules():
        if not isinstance(container, nn.Sequential | nn.ModuleList):
            continue
        run: list[nn.Module] = []
        for child in container:
            run = [*run, child] if run and type(child) is type(run[-1]) else [child]
            if len(run) > max(len(best), 1) and any(True for _ in child.parameters()):
                best = run
    return best


def to_device(batch: Any, device: torch.device | str) -> Any:
    """`batch` with every tensor in it moved to `device`; tuples, lists, dicts and named tuples are walked."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
