"""The tracker against torch's own allocator record, against fake tensors, and against plain bookkeeping of tensors held."""

import gc
import weakref
from collections.abc import Callable
from importlib import import_module
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from labkit.memory.tracker import CATEGORIES, PHASES, Event, Tracker

VOCABULARY, WIDTH = 96, 16


class Block(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def inner(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)


class Model(nn.Module):
    """Residual blocks between an embedding and a head: no op here has workspace of its own."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(checkpointed) for _ in range(3)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


Made = tuple[nn.Module, torch.optim.Optimizer, tuple[Tensor, Tensor], Callable[[], Any]]


def make(checkpointed: bool = False, clip: bool = False, **options: Any) -> Made:
    torch.manual_seed(0)
    model = Model(checkpointed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    batch = torch.randint(VOCABULARY, (4, 32)), torch.randint(VOCABULARY, (4, 32))

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return model, optimizer, batch, step


def signed(events: list[Event]) -> list[int]:
    return [event.nbytes if event.kind == "alloc" else -event.nbytes for event in events]


def peak(events: list[Event]) -> int:
    return max(accumulate(signed(events)))


def track_second_step(made: Made) -> list[Event]:
    model, optimizer, batch, step = made
    step()
    with Tracker(model, optimizer, inputs=batch) as tracker:
        step()
    return tracker.events


def allocator_peak(run: Callable[[], Any]) -> int:
    """The highest running sum of the allocator's events while `run` makes a model and trains it, without any tracker."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        held = run()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    del held
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_the_peak_is_the_allocators_to_the_byte(options: dict[str, bool]) -> None:
    def two_steps() -> Made:
        made = make(**options)
        made[3]()
        made[3]()
        return made

    assert peak(track_second_step(make(**options))) == allocator_peak(two_steps)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_fake_tensors_give_the_same_events(checkpointed: bool) -> None:
    real = track_second_step(make(checkpointed))
    with FakeTensorMode():
        fake = track_second_step(make(checkpointed))
    assert real == fake


def test_phases_are_found_in_order_and_clipping_belongs_to_the_optimizer() -> None:
    events = track_second_step(make(clip=True))
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == ["before", "forward", "backward", "optimizer"]
    # What follows the optimizer is the end of the step: nothing is allocated there.
    last_backward = max(i for i, event in enumerate(events) if event.phase == "backward")
    assert {event.phase for event in events[last_backward + 1 :] if event.kind == "alloc"} == {"optimizer"}
    assert any("norm" in event.op for event in events if event.phase == "optimizer")


def test_recomputation_is_a_phase_and_makes_activations() -> None:
    events = track_second_step(make(checkpointed=True))
    again = [event for event in events if event.phase == "recompute" and event.kind == "alloc"]
    assert {event.op for event in again} >= {"aten.addmm", "aten.gelu", "aten.native_layer_norm"}
    assert "activations" in {event.category for event in again} <= {"activations", "temporaries"}
    assert {event.module for event in again} >= {"blocks.2.up", "blocks.0.norm"}
    assert not any(event.phase == "recompute" for event in track_second_step(make()))


def test_a_backward_that_keeps_its_graph_is_not_taken_for_recomputation() -> None:
    x = torch.ones(8, requires_grad=True)
    with Tracker() as tracker:
        (slope,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
        slope.sum().backward()
    assert {event.phase for event in tracker.events} == {"forward", "backward"}


def test_ops_are_placed_in_the_module_whose_forward_made_them() -> None:
    events = track_second_step(make())
    for module, forward, backward in [
        ("blocks.1.up", "aten.addmm", "aten.mm"),
        ("blocks.1.norm", "aten.native_layer_norm", "aten.native_layer_norm_backward"),
        ("blocks.1", "aten.gelu", "aten.gelu_backward"),
        ("head", "aten.mm", "aten.mm"),
        ("embedding", "aten.embedding", "aten.embedding_dense_backward"),
    ]:
        ops = {phase: {e.op for e in events if e.phase == phase and e.module == module} for phase in PHASES}
        assert forward in ops["forward"] and backward in ops["backward"], module


def test_categories_add_up_exactly() -> None:
    model, optimizer, batch, step = make()
    events = track_second_step((model, optimizer, batch, step))
    n_bytes = sum(p.nbytes for p in model.parameters())
    born = {name: sum(e.nbytes for e in events if e.category == name and e.kind == "alloc") for name in CATEGORIES}
    assert born["parameters"] == n_bytes
    assert born["gradients"] == 2 * n_bytes  # the old ones, freed by zero_grad, and the new
    assert born["optimizer"] == 2 * n_bytes + 4 * len(list(model.parameters()))  # two moments and a step counter each
    assert born["inputs"] == sum(t.nbytes for t in batch)


def test_gradients_kept_between_steps_are_gradients_throughout() -> None:
    model, optimizer, batch, _ = make()

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).backward()
        optimizer.step()

    events = track_second_step((model, optimizer, batch, step))
    kept = [event for event in events if event.category == "gradients"]
    assert {(event.kind, event.phase) for event in kept} == {("alloc", "before")}


def test_two_micro_batches_accumulate_into_one_gradient() -> None:
    model, optimizer, batch, _ = make()

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).backward()
        optimizer.step()

    events = track_second_step((model, optimizer, batch, step))
    made = [event for event in events if event.category == "gradients" and event.phase == "backward"]
    assert sum(event.nbytes for event in made) == sum(p.nbytes for p in model.parameters())


def test_a_step_that_steps_inside_backward_is_still_told_apart() -> None:
    model, _, batch, _ = make()
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step() -> None:
        F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).backward()

    step()
    with Tracker(model, optimizers.values(), inputs=batch) as tracker:
        step()
    events = tracker.events
    n_bytes = sum(p.nbytes for p in model.parameters())
    assert sum(e.nbytes for e in events if e.category == "gradients" and e.kind == "alloc") == n_bytes
    assert sum(e.nbytes for e in events if e.category == "optimizer" and e.kind == "alloc") == n_bytes
    live, highest = 0, 0
    for event, change in zip(events, signed(events), strict=True):
        live += change if event.category == "gradients" else 0
        highest = max(highest, live)
    assert highest < n_bytes / 2  # never all gradients at once: the point of such a step


def test_views_and_in_place_ops_cost_nothing() -> None:
    x = torch.ones(6, 4)
    with Tracker(inputs=x) as tracker:
        y = x.view(4, 6).t()[1:].detach()
        y.add_(1).mul_(2)
        x.unsqueeze(0).squeeze().chunk(2)
    assert [event.phase for event in tracker.events] == ["before"]


def test_memory_that_an_out_argument_or_a_resize_makes_is_seen() -> None:
    with Tracker() as tracker:
        x = torch.empty(0)
        torch.add(torch.ones(100), 1, out=x)
        assert x.untyped_storage().nbytes() == 400
        x.resize_(1000)
        y = torch.empty(10)
        y.set_(x)
    live: dict[int, int] = {}
    for event in tracker.events:
        live[event.storage] = event.nbytes if event.kind == "alloc" else 0
    assert sum(live.values()) == x.untyped_storage().nbytes() == 4000
    # A resize holds the old and the new memory while it copies.
    assert peak(tracker.events) == 4000 + 400


def test_data_assigned_to_a_parameter_becomes_a_parameter() -> None:
    model = nn.Linear(8, 8, bias=False)
    with Tracker(model) as tracker:
        model.weight.data = torch.zeros(8, 8)
    assert [(e.kind, e.category) for e in tracker.events] == [("alloc", "parameters")] * 2 + [("free", "parameters")]


def test_the_tensors_inside_a_wrapper_are_counted() -> None:
    with Tracker() as tracker:
        x = TwoTensor(torch.ones(10), torch.ones(10))
        y = x * 2
    del x, y
    assert sum(event.nbytes for event in tracker.events if event.kind == "alloc") == 4 * 40


def test_the_tracker_keeps_nothing_alive() -> None:
    made = make()
    model, optimizer, batch, step = made
    with Tracker(model, optimizer, inputs=(batch, extra := torch.ones(1000))) as tracker:
        reference = weakref.ref(extra.untyped_storage())
        del extra
        assert reference() is None
        step()
    assert [e.kind for e in tracker.events if e.nbytes == 4000] == ["alloc", "free"]


def test_inputs_nobody_declared_are_found() -> None:
    model, optimizer, batch, step = make()
    with Tracker(model, optimizer, find_inputs=True) as tracker:
        step()
    assert {reference().nbytes() for reference in tracker.found} == {tensor.nbytes for tensor in batch}
    assert sum(e.nbytes for e in tracker.events if e.category == "inputs") == sum(tensor.nbytes for tensor in batch)


def test_hooks_go_even_when_the_step_fails() -> None:
    def hooks() -> tuple[int, ...]:
        module, optimizer = import_module("torch.nn.modules.module"), import_module("torch.optim.optimizer")
        return (
            len(module._global_forward_pre_hooks),
            len(module._global_forward_hooks),
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        )

    before = hooks()
    with pytest.raises(RuntimeError), Tracker(nn.Linear(2, 2)) as tracker:
        assert hooks() == tuple(count + 1 for count in before)
        torch.ones(2) @ torch.ones(3)
    assert hooks() == before
    n_events = len(tracker.events)
    torch.ones(10)
    gc.collect()
    assert len(tracker.events) == n_events


COMMANDS = ("ones", "view", "in_place", "double", "split", "cat", "resize", "foreach", "drop", "clone")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 10**6)), max_size=30))
def test_live_bytes_are_those_of_the_tensors_held(program: list[tuple[str, int]]) -> None:
    """Any program of tensor ops: after each one, live bytes equal the distinct storages that Python still holds."""
    with Tracker() as tracker:
        held = [torch.ones(5)]
        for command, number in program:
            run_command(command, number, held)
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held if t.numel()}
            assert sum(signed(tracker.events)) == sum(storages.values())
    sums = list(accumulate(signed(tracker.events)))
    assert min(sums) >= 0
    freed = [event.storage for event in tracker.events if event.kind == "free"]
    assert len(freed) == len(set(freed))


def run_command(command: str, number: int, held: list[Tensor]) -> None:
    x = held[number % len(held)]
    size = number % 17 + 1
    match command:
        case "ones":
            held.append(torch.ones(size))
        case "view":
            held.append(x[: max(1, x.numel() // 2)])
        case "in_place":
            x.add_(1)
        case "double":
            held.append(x * 2)
        case "split":
            held.extend(x.chunk(2))
        case "cat":
            held.append(torch.cat([x, x]))
        case "resize":
            if x.storage_offset() == 0:
                x.resize_(size * 8)
        case "foreach":
            held.extend(torch._foreach_add([x, x], 1))
        case "clone":
            held[number % len(held)] = x.clone()
        case "drop":
            if len(held) > 1:
                held.pop(number % len(held))
