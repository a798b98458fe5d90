"""Checkpointing: the same gradients, exactly the promised recomputation, and the blocks as they were afterwards."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from technique_models import Gpt, batch, gradients, loss, same_bits, workload
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from labkit.techniques.checkpointing import (
    apply_checkpointing,
    moving_to_host,
    parse_policy,
    plan_segments,
)
from labkit.techniques.precision import PRECISIONS
from labkit.techniques.step import TrainingStep
from labkit.training import preset
from labkit.training import workload as transformer
from labkit.workload import longest_run

POLICIES = ["full", "every:2", "every:3", "sqrt", "selective", "offload", {0, 2}, [[1, 2, 3]]]
RECOMPUTING = {"full": 4, "every:2": 4, "every:3": 4, "sqrt": 4, "selective": 4, "offload": 0, "none": 0}


def run(model: nn.Module, data: tuple[Tensor, Tensor], seed: int = 7) -> list[Tensor]:
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss(model, data).backward()
    return gradients(model)


def gpt(**options: object) -> Gpt:
    torch.manual_seed(0)
    return Gpt(**options)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_fp32_gradients_are_those_of_none_bit_for_bit(policy: object, dropout: float) -> None:
    model = gpt(dropout=dropout)
    plain = run(model, batch(3))
    with apply_checkpointing(model, model.blocks, policy):
        assert same_bits(run(model, batch(3)), plain)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_policy_with_every_precision_and_accumulation_gives_the_gradients_of_none(precision: str, count: int) -> None:
    # No exception is needed: the graph that runs backward is the one of the plain forward, and the recomputation uses
    # the same kernels on the same values under the same autocast and RNG state. (It would be needed where a kernel of
    # the block gives other bits each time, as some CUDA scatters do.)
    micro_batches = [batch(2, seed) for seed in range(count)]

    def step(policy: object) -> list[Tensor]:
        one = TrainingStep(workload(dropout=0.1), precision=precision, checkpointing=policy, device="cpu", clip=1.0)
        one(*micro_batches)
        return gradients(one.model)

    plain = step("none")
    assert len(plain) > 0
    assert [policy for policy in POLICIES if not same_bits(step(policy), plain)] == []


@pytest.mark.parametrize("policy", RECOMPUTING)
def test_each_recomputed_block_runs_exactly_twice(policy: str) -> None:
    model = gpt()
    with apply_checkpointing(model, model.blocks, policy):
        run(model, batch(2))
    assert sum(block.calls for block in model.blocks) == 4 + RECOMPUTING[policy]


def test_explicit_placement_recomputes_the_named_blocks_only() -> None:
    model = gpt()
    with apply_checkpointing(model, model.blocks, {1, 3}):
        run(model, batch(2))
    assert [block.calls for block in model.blocks] == [1, 2, 1, 2]


class Mlp(nn.Module):
    """Two products with the residual sum at the end: what is saved last is the input of the second product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(
    ("policy", "recomputed_products"),
    [
        # A recomputation stops as soon as everything saved is there again, so the last product of each checkpoint,
        # whose result nobody saved, is never repeated.
        ("none", 0),
        ("full", 6 * 2 - 6),
        ("every:2", 6 * 2 - 3),
        ("every:3", 6 * 2 - 2),
        ("sqrt", 6 * 2 - 2),
        ("every:6", 6 * 2 - 1),
        ("selective", 0),
        ("offload", 0),
        ({0, 5}, 2 * 2 - 2),
    ],
    ids=str,
)
def test_flops_are_those_of_theory(policy: object, recomputed_products: int) -> None:
    tokens, width, depth = 5, 8, 6
    model = nn.Sequential(*(Mlp(width) for _ in range(depth)))
    product = 2 * tokens * width * 4 * width
    x = torch.randn(tokens, width, requires_grad=True)
    with apply_checkpointing(model, list(model), policy):
        with FlopCounterMode(display=False) as forward:
            out = model(x)
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
    assert forward.get_total_flops() == 2 * depth * product
    assert backward.get_total_flops() == (2 * 2 * depth + recomputed_products) * product


@pytest.mark.parametrize(
    ("policy", "segments"), [("none", None), ("full", 4), ("every:2", 2), ("sqrt", 2), ("selective", None), ("offload", None)]
)
def test_flops_of_the_courses_transformer_are_those_of_theory(policy: str, segments: int | None) -> None:
    # torch's counter knows the products; it has no formula for the fused attention of a CPU.
    course, size = transformer("tiny"), preset("tiny")
    step = TrainingStep(course, checkpointing=policy, device="cpu")
    data = course.batch(1)
    with FlopCounterMode(display=False) as forward:
        value = step.forward_loss(data)
    with FlopCounterMode(display=False) as backward:
        value.backward()
    keys = size.kv_heads * size.head_dim
    multiply_adds = 2 * size.hidden**2 + 2 * size.hidden * keys + 3 * size.hidden * size.intermediate
    block = 2 * size.sequence * multiply_adds
    head, down = (2 * size.sequence * size.hidden * width for width in (size.vocab, size.intermediate))
    plain = size.layers * block + head
    assert forward.get_total_flops() == plain
    again = size.layers * block - segments * down if segments else 0
    assert backward.get_total_flops() == 2 * plain + again


class ByName(nn.Linear):
    def forward(self, *, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def test_a_block_whose_arguments_all_have_names_is_recomputed_too() -> None:
    block, x = ByName(4, 4), torch.randn(3, 4)
    block(x=x).sum().backward()
    plain = gradients(block)
    block.zero_grad()
    with apply_checkpointing(block, [block], "full"):
        block(x=x).sum().backward()
    assert same_bits(gradients(block), plain)


@pytest.mark.parametrize("policy", ["none", "full", "every:2", "sqrt", "selective", "offload"])
def test_what_is_kept_for_backward_shrinks_as_promised(policy: str) -> None:
    model = gpt(depth=4)
    saved: list[int] = []

    def record(tensor: Tensor) -> Tensor:
        if not moving_to_host():
            saved.append(tensor.numel())
        return tensor

    with (
        apply_checkpointing(model, model.blocks, policy),
        torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
    ):
        loss(model, batch(2))
    plain = gpt(depth=4)
    expected: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (expected.append(t.numel()), t)[1], lambda t: t):
        loss(plain, batch(2))
    if policy == "none":
        assert saved == expected
    else:
        # Inner hooks take over inside the blocks: what is left to the outer ones is the embedding's and the head's.
        assert 0 < sum(saved) < sum(expected) / 4


def test_dropout_is_repeated_and_the_random_stream_goes_on_as_without() -> None:
    model = gpt(dropout=0.5)
    run(model, batch(2))
    plain = torch.rand(3)
    with apply_checkpointing(model, model.blocks, "full"):
        run(model, batch(2))
    assert torch.equal(torch.rand(3), plain)


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())


@pytest.mark.parametrize("policy", ["full", "every:2", "selective", "offload"])
def test_batch_norm_counts_a_batch_once(policy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Normed() for _ in range(4)))
    twin = copy.deepcopy(model)
    x = torch.randn(8, 6)
    model(x).square().sum().backward()
    with apply_checkpointing(twin, list(twin), policy):
        twin(x).square().sum().backward()
    assert same_bits(list(model.buffers()), list(twin.buffers()))
    assert same_bits(gradients(model), gradients(twin))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_hugging_face_blocks_with_further_arguments(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, **sizes
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(n_embd=16, n_layer=4, n_head=2, n_positions=16, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(32, (2, 9))

    def run_hf() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        return gradients(model)

    plain = run_hf()
    for policy in ("full", "every:2", "sqrt", "selective", "offload"):
        with apply_checkpointing(model, longest_run(model), policy):
            assert same_bits(run_hf(), plain), policy


@pytest.mark.parametrize("policy", ["full", "every:2", "selective"])
def test_compiled_model_gives_the_eager_gradients(policy: str) -> None:
    torch._dynamo.reset()
    model = gpt(depth=2)
    plain = run(model, batch(2))
    with apply_checkpointing(model, model.blocks, policy):
        compiled = torch.compile(model, backend="aot_eager")
        model.zero_grad(set_to_none=True)
        loss(compiled, batch(2)).backward()
    assert same_bits(gradients(model), plain)


def test_hooks_on_the_blocks_still_fire_on_real_runs() -> None:
    model = gpt()
    seen: list[int] = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda module, args, out, index=index: seen.append(index))
    with apply_checkpointing(model, model.blocks, "every:2"):
        loss(model, batch(2))
    assert set(seen) == {0, 1, 2, 3}


def test_without_gradients_nothing_is_recomputed_or_kept() -> None:
    model = gpt()
    with apply_checkpointing(model, model.blocks, "every:4"), torch.no_grad():
        first, second = loss(model, batch(2)), loss(model, batch(2))
    assert torch.equal(first, second)
    assert [block.calls for block in model.blocks] == [2] * 4


def test_a_forward_that_fails_leaves_the_next_one_right() -> None:
    model = gpt()
    plain = run(model, batch(2))

    def fail(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise ZeroDivisionError

    with apply_checkpointing(model, model.blocks, "every:2"):
        hook = model.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            loss(model, batch(2))
        hook.remove()
        assert same_bits(run(model, batch(2)), plain)


def test_removal_gives_back_the_own_forward_and_names_never_change() -> None:
    model = gpt()
    names = list(model.state_dict())
    handle = apply_checkpointing(model, model.blocks, "every:2")
    assert list(model.state_dict()) == names
    handle.remove()
    handle.remove()
    assert all("forward" not in vars(block) for block in model.blocks)


def test_a_second_policy_on_the_same_blocks_is_refused_and_the_first_stays() -> None:
    model = gpt()
    with apply_checkpointing(model, model.blocks, "full"):
        with pytest.raises(ValueError, match="already"):
            apply_checkpointing(model, model.blocks, "selective")
        run(model, batch(2))
        assert [block.calls for block in model.blocks] == [2] * 4


class Parallel(nn.Module):
    """Blocks side by side: not a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x) + self.blocks[1](x)


class Told(nn.Module):
    """A chain whose blocks are told different things."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scaled() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x, scale=index + 1.0)
        return x


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return super().forward(x) * scale


@pytest.mark.parametrize(("model", "message"), [(Parallel(), "output of the block before"), (Told(), "other arguments")])
def test_what_is_no_chain_is_refused_in_segments_and_right_with_full(model: nn.Module, message: str) -> None:
    x = torch.randn(3, 4)
    with apply_checkpointing(model, model.blocks, "every:2"), pytest.raises(RuntimeError, match=message):
        model(x)
    model(x).sum().backward()
    plain = gradients(model)
    model.zero_grad()
    with apply_checkpointing(model, model.blocks, "full"):
        model(x).sum().backward()
    assert same_bits(gradients(model), plain)


@pytest.mark.parametrize("policy", ["", "Full", "every", "every:", "every:0", "every:-1", "every:1.5", "every:²", "full:2"])
def test_unknown_policies_are_refused_by_name(policy: str) -> None:
    with pytest.raises(ValueError, match="none, full, every:K, sqrt, selective, offload"):
        parse_policy(policy)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({4}, "outside the 4"),
        ({-1}, "outside"),
        ([[0, 2]], "neighbouring"),
        ([[]], "neighbouring"),
        ([[0, 1], [1, 2]], "shares"),
    ],
)
def test_impossible_placements_are_refused(policy: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_segments(policy, 4)


def test_a_policy_needs_blocks() -> None:
    with pytest.raises(ValueError, match="needs blocks"):
        apply_checkpointing(nn.Linear(2, 2), [], "full")
    apply_checkpointing(nn.Linear(2, 2), [], "none")


@settings(deadline=None, max_examples=50)
@given(total=st.integers(1, 200), length=st.integers(1, 220))
def test_segments_cover_every_block_once_in_order(total: int, length: int) -> None:
    for policy in (f"every:{length}", "sqrt", "full", "selective"):
        segments = plan_segments(policy, total)
        assert [index for segment in segments for index in segment] == list(range(total))
    assert max(map(len, plan_segments(f"every:{length}", total))) == min(length, total)
