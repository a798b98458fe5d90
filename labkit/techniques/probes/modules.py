"""Which module an operation belongs to, in the forward pass, in the backward pass and in the optimizer."""

import bisect
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class ModuleTracker:
    """Knows, while entered, the phase (`forward`, `backward`, `optimizer`) and the dotted name of the module at work.

    In backward the graph node at work carries the sequence number that it got in forward; modules are told apart by
    the numbers at which they were entered and left.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._stack: list[str] = []
        #: (sequence number, order of arrival, module from this number on), sorted.
        self._boundaries: list[tuple[int, int, str]] = []
        self._owners = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}
        self._stepping = 0
        self._handles: list[Any] = []

    def __enter__(self) -> "ModuleTracker":
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(name)))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._handles.append(register_optimizer_step_pre_hook(lambda *_: self._step(1)))
        self._handles.append(register_optimizer_step_post_hook(lambda *_: self._step(-1)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def phase(self) -> str:
        """What the program is doing now; a forward pass that checkpointing repeats counts as backward."""
        if self._stepping:
            return "optimizer"
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    @property
    def module(self) -> str:
        """The dotted name of the module at work; empty outside of the model, and for the model itself."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._boundaries:
            return ""
        if hasattr(node, "variable"):  # it adds a finished gradient to a parameter
            return self._owners.get(id(node.variable), "")
        place = bisect.bisect_right(self._boundaries, node._sequence_nr(), key=lambda boundary: boundary[0])
        return self._boundaries[place - 1][2] if place else ""

    def _entering(self, name: str) -> Any:
        def enter(*_: Any) -> None:
            self._stack.append(name)
            self._mark(name)

        return enter

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._mark(self._stack[-1] if self._stack else "")

    def _mark(self, name: str) -> None:
        bisect.insort(self._boundaries, (torch._C._autograd._get_sequence_nr(), len(self._boundaries), name))

    def _step(self, change: int) -> None:
        self._stepping += change
