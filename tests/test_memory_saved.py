"""What autograd keeps: exact rows for small models, and the tracker's activations as an independent count."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from labkit.memory import saved_tensors
from labkit.memory.saved import by_module
from labkit.memory.tracker import Tracker


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))


def test_every_row_of_a_small_model(model: nn.Module) -> None:
    x = torch.ones(16, 8)
    frame = saved_tensors(lambda: model(x).square().sum(), model, inputs=x)
    rows = [tuple(row) for row in frame.itertuples(index=False)]
    assert rows == [
        ("0", "addmm", (16, 8), "float32", 16 * 8 * 4, "input", False),
        ("1", "gelu", (16, 32), "float32", 16 * 32 * 4, "activation", False),
        ("2", "addmm", (16, 32), "float32", 16 * 32 * 4, "activation", False),
        ("2", "addmm", (32, 4), "float32", 32 * 4 * 4, "parameter", False),
        ("", "pow", (16, 4), "float32", 16 * 4 * 4, "activation", False),
    ]


def test_a_storage_kept_twice_counts_once() -> None:
    layer = nn.Linear(8, 8, bias=False)
    x = torch.ones(4, 8, requires_grad=True)
    frame = saved_tensors(lambda: (lambda y: (y * y).sum())(layer(x).sigmoid()), layer)
    kept = frame[(frame["op"] == "sigmoid") | (frame["op"] == "mul")]
    assert list(kept["shared"]) == [False, True, True]
    assert by_module(frame).loc[""] == 4 * 8 * 4


def test_the_sum_is_what_the_tracker_calls_activations(model: nn.Module) -> None:
    x, y = torch.ones(16, 8), torch.zeros(16, dtype=torch.long)
    frame = saved_tensors(lambda: F.cross_entropy(model(x), y), model, inputs=(x, y))
    with Tracker(model, inputs=(x, y)) as tracker:
        F.cross_entropy(model(x), y).backward()
    tracked = sum(e.nbytes for e in tracker.events if e.kind == "alloc" and e.category == "activations")
    # The tracker also counts the loss itself and the 1 that backward starts from: 4 bytes each.
    assert by_module(frame).sum() == tracked - 8


def test_a_checkpointed_region_keeps_its_inputs_only(model: nn.Module) -> None:
    x = torch.ones(16, 8, requires_grad=True)
    frame = saved_tensors(lambda: checkpoint(model, x, use_reentrant=False).sum(), model, inputs=x)
    assert by_module(frame).sum() == 0


def test_half_the_bytes_under_autocast(model: nn.Module) -> None:
    x = torch.ones(16, 8)

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().sum()

    frame = saved_tensors(forward, model, inputs=x).query("op == 'gelu'")
    assert list(frame["dtype"]) == ["bfloat16"] and list(frame["bytes"]) == [16 * 32 * 2]


def test_names_can_be_cut_to_a_depth() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 1))
    frame = saved_tensors(lambda: model(torch.ones(2, 4)).sum(), model)
    assert dict(by_module(frame, depth=1)) == {"0": 2 * (2 * 4 * 4), "1": 2 * 4 * 4}
    assert set(by_module(frame).index) == {"0.0", "0.1", "1"}
    assert by_module(frame, kind="parameter").sum() == 4 * 4 * 4 + 4 * 4


def test_no_gradient_is_made(model: nn.Module) -> None:
    saved_tensors(lambda: model(torch.ones(2, 8)).sum(), model)
    assert all(p.grad is None for p in model.parameters())


def test_bad_arguments_get_one_sentence(model: nn.Module) -> None:
    with pytest.raises(TypeError, match="function of no arguments"):
        saved_tensors(torch.ones(1), model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returned NoneType without a gradient"):
        saved_tensors(lambda: None, model)
    with pytest.raises(ValueError, match="returned Tensor without a gradient"):
        saved_tensors(lambda: torch.ones(1), model)
