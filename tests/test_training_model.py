"""The course's model: its sizes, its errors, and what each part must do whatever its weights are."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.techniques.precision import PRECISIONS
from labkit.techniques.step import TrainingStep
from labkit.training import PRESETS, ModelConfig, Transformer, preset, workload
from labkit.training.model import Positions, RMSNorm, SelfAttention, next_token_loss, parameter_count, rope_tables

CONFIG = ModelConfig(vocab=32, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, sequence=16)


def model(**changes: object) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(CONFIG, **changes))


def tokens(batch: int = 2, length: int = 16) -> Tensor:
    return torch.randint(CONFIG.vocab, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "count"), [("tiny", 754_816), ("small", 2_460_096), ("article", 179_448_576), ("gpt2-like", 162_220_800)]
)
def test_presets_have_the_stated_number_of_parameters(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameter_count(Transformer(preset(name))) == count


@pytest.mark.parametrize("name", PRESETS)
def test_the_number_of_parameters_is_the_sum_over_the_matrices(name: str) -> None:
    c = PRESETS[name]
    block = 2 * c.hidden**2 + 2 * c.hidden * c.kv_heads * (c.hidden // c.heads) + 3 * c.hidden * c.intermediate + 2 * c.hidden
    with torch.device("meta"):
        assert parameter_count(Transformer(c)) == 2 * c.vocab * c.hidden + c.layers * block + c.hidden


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 30}, "hidden must be a multiple of heads, but 30 is not a multiple of 4"),
        ({"kv_heads": 3}, "heads must be a multiple of kv_heads, but 4 is not a multiple of 3"),
        ({"hidden": 36}, "36 / 4 is odd"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"sequence": -1}, "sequence must be at least 1, not -1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"attention": "flash"}, "attention must be 'sdpa' or 'mask', not 'flash'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **changes)


@pytest.mark.parametrize("value", [1.5, "4", True, None])
def test_a_size_is_a_whole_number(value: object) -> None:
    with pytest.raises(TypeError, match="layers must be a whole number"):
        replace(CONFIG, layers=value)


def test_presets_are_found_by_name_and_changed_by_field() -> None:
    assert preset("article", attention="sdpa") == replace(PRESETS["article"], attention="sdpa")
    with pytest.raises(ValueError, match="'huge' is unknown; choose one of tiny, small, article, gpt2-like"):
        preset("huge")
    with pytest.raises(TypeError, match="no field 'depth'; its fields: vocab, hidden"):
        preset("tiny", depth=3)


def test_a_sequence_longer_than_the_config_is_refused_and_a_shorter_one_is_not() -> None:
    with pytest.raises(ValueError, match="17 tokens is longer than the model's 16"):
        model()(tokens(length=17))
    assert model()(tokens(length=5)).shape == (2, 5, CONFIG.vocab)


@pytest.mark.parametrize("attention", ["sdpa", "mask"])
def test_no_token_sees_the_future(attention: str) -> None:
    network, before = model(attention=attention), tokens()
    after = before.clone()
    after[:, 9] = (after[:, 9] + 1) % CONFIG.vocab
    changed = (network(before) != network(after)).any(-1)
    assert not changed[:, :9].any()
    assert changed[:, 9:].all()


def test_the_float_mask_computes_the_same_function() -> None:
    torch.testing.assert_close(model(attention="mask")(tokens()), model()(tokens()))


def test_grouped_heads_equal_heads_repeated_by_hand() -> None:
    attention = model().blocks[0].attention
    x = torch.randn(2, 16, CONFIG.hidden)
    q, k, v = (attention._heads(layer(x)) for layer in (attention.query, attention.key, attention.value))
    q, k = attention.positions.rotate(q), attention.positions.rotate(k)
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(2, dim=2), v.repeat_interleave(2, dim=2)))
    scores = (q @ k.transpose(-2, -1) / CONFIG.head_dim**0.5).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
    expected = attention.output((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 16, -1))
    torch.testing.assert_close(attention(x), expected)


def test_rmsnorm_equals_torchs_own() -> None:
    ours, torchs = RMSNorm(32, 1e-5), torch.nn.RMSNorm(32, eps=1e-5)
    x = torch.randn(3, 5, 32) * 10
    torch.testing.assert_close(ours(x), torchs(x))


def test_rmsnorm_takes_its_mean_of_squares_in_fp32() -> None:
    # 300 squared is beyond fp16's largest number, 65504.
    assert RMSNorm(8, 1e-5).half()(torch.full((1, 8), 300.0, dtype=torch.float16)).tolist() == [[1.0] * 8]


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16, torch.float16])
def test_rope_tells_512_positions_apart_whatever_the_default_dtype(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        cos, sin = rope_tables(512, 64, 10_000.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert cos.dtype == sin.dtype == default
    assert len(torch.cat((cos, sin), dim=1).unique(dim=0)) == 512
    exact = torch.outer(torch.arange(512).double(), 10_000.0 ** (-torch.arange(0, 64, 2).double() / 64))
    for table, expected in ((cos[:, :32], exact.cos()), (sin[:, 32:], exact.sin()), (-sin[:, :32], exact.sin())):
        assert (table.double() - expected).abs().max() <= torch.finfo(default).eps / 2 + 1e-4


def test_rope_makes_the_score_depend_on_the_distance_only() -> None:
    positions = Positions(CONFIG)
    q, k = torch.randn(8).expand(1, 16, 1, 8), torch.randn(8).expand(1, 16, 1, 8)
    scores = positions.rotate(q)[0, :, 0] @ positions.rotate(k)[0, :, 0].T
    for distance in (0, 3, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)
    assert scores[3, 0] != scores[0, 3]


def test_rope_keeps_lengths() -> None:
    x = torch.randn(1, 16, 4, 8)
    torch.testing.assert_close(Positions(CONFIG).rotate(x).norm(dim=-1), x.norm(dim=-1))


def test_the_tables_are_held_once_and_not_saved() -> None:
    network = model(attention="mask")
    assert len({id(block.attention.positions) for block in network.blocks}) == 1
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}


def test_the_loss_is_nats_per_token() -> None:
    network = model()
    batch = (tokens(), tokens())
    log_p = network(batch[0]).log_softmax(-1).gather(-1, batch[1][..., None])
    torch.testing.assert_close(next_token_loss(network, batch), -log_p.mean())


def test_an_untrained_model_is_as_good_as_guessing() -> None:
    loss = next_token_loss(model(), (tokens(64), tokens(64)))
    assert loss.item() == pytest.approx(torch.tensor(CONFIG.vocab).log().item(), rel=0.01)


@pytest.mark.parametrize("name", PRECISIONS)
def test_one_step_runs_under_every_precision_in_its_own_dtype(name: str) -> None:
    load = workload(replace(CONFIG, vocab=256))
    step = TrainingStep(load, precision=name)
    result = step(load.batch(2))
    assert {parameter.dtype for parameter in step.model.parameters()} == {PRECISIONS[name].parameter_dtype}
    assert {buffer.dtype for buffer in step.model.buffers()} == {PRECISIONS[name].parameter_dtype}
    assert result.loss.item() == pytest.approx(5.545, abs=0.1)


def test_dropout_acts_in_training_only() -> None:
    network = model(dropout=0.5)
    assert not torch.equal(network(tokens()), network(tokens()))
    network.eval()
    assert torch.equal(network(tokens()), network(tokens()))


def test_blocks_run_as_a_chain() -> None:
    network = model()
    x = network.embedding(tokens())
    for block in network.blocks:
        x = block(x)
    assert torch.equal(network.head(network.norm(x)), network(tokens()))


def test_the_residual_stream_keeps_its_size_at_any_depth() -> None:
    def spread(layers: int) -> float:
        network, seen = model(layers=layers), []
        network.norm.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].std().item()))
        network(tokens())
        return seen[0]

    assert spread(24) < 3 * spread(1)


def test_attention_without_a_mask_may_take_the_fused_kernel() -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        SelfAttention(CONFIG, Positions(CONFIG))(torch.randn(1, 16, 32))


def test_gradients_reach_every_parameter() -> None:
    network = model()
    F.cross_entropy(network(tokens()).flatten(0, 1), tokens().flatten()).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())
