"""Finding the blocks of any model, and moving any batch."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from labkit.workload import Workload, longest_run, to_device


def stack(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


def workload(model: nn.Module, blocks: object = None) -> Workload:
    return Workload(lambda: model, lambda n: torch.zeros(n, 4), lambda m, b: m(b).sum(), blocks=blocks)  # type: ignore[arg-type]


def test_the_longest_run_of_equal_modules_is_found_inside_any_container() -> None:
    model = nn.ModuleDict({"embed": nn.Linear(4, 4), "body": nn.ModuleList([Block() for _ in range(3)])})
    assert workload(model).find_blocks(model) == list(model["body"])


def test_a_run_is_of_neighbours_only() -> None:
    model = stack(Block(), nn.Linear(4, 4), Block(), Block())
    assert longest_run(model) == [model[2], model[3]]


def test_the_first_of_equal_runs_is_taken() -> None:
    model = stack(Block(), Block(), nn.Linear(4, 4), Block(), Block())
    assert longest_run(model) == [model[0], model[1]]


def test_modules_without_parameters_are_no_blocks() -> None:
    assert longest_run(stack(nn.ReLU(), nn.ReLU(), nn.ReLU())) == []


def test_a_single_module_is_no_run() -> None:
    assert longest_run(stack(nn.Linear(4, 4))) == []


def test_blocks_can_be_named_or_chosen() -> None:
    model = nn.ModuleDict({"a": stack(Block(), Block(), Block()), "b": stack(Block(), Block())})
    assert workload(model, "b").find_blocks(model) == list(model["b"])
    assert workload(model, lambda m: [m["a"][0]]).find_blocks(model) == [model["a"][0]]


def test_a_wrong_name_lists_the_containers() -> None:
    model = nn.ModuleDict({"a": stack(Block(), Block())})
    with pytest.raises(ValueError, match=r"blocks 'layers' names no module of the model; containers: \['a'\]"):
        workload(model, "layers").find_blocks(model)


def test_every_tensor_of_a_batch_moves_and_the_rest_stays() -> None:
    batch = {"x": torch.zeros(2), "pair": (torch.ones(1), "text"), "list": [torch.ones(1), 3]}
    moved = to_device(batch, "meta")
    assert moved["x"].is_meta and moved["pair"][0].is_meta and moved["list"][0].is_meta
    assert moved["pair"][1] == "text" and moved["list"][1] == 3 and isinstance(moved["pair"], tuple)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_a_named_tuple_stays_one() -> None:
    moved = to_device(Pair(torch.ones(1), torch.ones(1)), "meta")
    assert isinstance(moved, Pair) and moved.y.is_meta
