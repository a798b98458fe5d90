"""Predictions held against measured steps to the byte on a CPU, and against PyTorch's stated rules for CUDA."""

import gc
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit.memory import UnknownMemory, max_batch, measure, measure_workload, predict, predict_build
from labkit.memory.cuda_attention import AttentionCall, choose_backend
from labkit.memory.cuda_workspaces import cublas_workspace, efficient_backward, flash_backward
from labkit.memory.prediction import fits, replay
from labkit.memory.trace import is_hidden
from labkit.training import preset, workload
from labkit.workload import Workload

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "bf16-true-kahan")


def linear_chain(width: int = 256) -> Workload:
    """A chain whose memory can be counted by hand."""
    return Workload(
        model=lambda: nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False)),
        batch=lambda n: torch.randn(n, width),
        loss=lambda model, batch: model(batch).square().mean(),
        name="chain",
    )


@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt", "selective", "offload"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_on_a_cpu_the_prediction_is_the_measurement(precision, checkpointing):
    measured = measure_workload(
        workload("tiny"), 2, precision=precision, checkpointing=checkpointing, device="cpu", allocator=False
    )
    predicted = predict(workload("tiny"), 2, precision=precision, checkpointing=checkpointing, device="cpu")
    assert predicted.live_peak == measured.peak_bytes
    assert predicted.by_category == measured.by_category
    assert (predicted.op_at_peak, predicted.module_at_peak) == (measured.op_at_peak, measured.module_at_peak)


def test_on_a_cpu_the_allocators_own_record_agrees():
    measured = measure_workload(workload("tiny"), 2, device="cpu")
    predicted = predict(workload("tiny"), 2, device="cpu")
    assert measured.allocator is not None
    # A Python number that an operation wraps in a tensor is the allocator's alone: 64 bytes with its padding.
    assert predicted.live_peak == pytest.approx(measured.allocator.peak_bytes, abs=64)


def test_fixed_memory_is_four_copies_of_the_parameters():
    found = predict(linear_chain(), 1)
    parameters = 2 * 256 * 256 * 4
    assert found.by_category["parameters"] == parameters
    assert found.by_category["optimizer"] == pytest.approx(2 * parameters, abs=2048)
    assert found.report.timeline["gradients"].max() == parameters


def test_peaks_stand_in_their_order_and_the_context_is_a_parameter():
    found = predict(workload("tiny"), 4, context="500 MB")
    assert found.live_peak < found.allocated_peak <= found.reserved_peak
    assert found.nvidia_smi == found.reserved_peak + 500_000_000


def test_foreach_adamw_is_cudas_default_and_fused_needs_no_copy():
    def adamw(**options):
        return Workload(
            model=lambda: nn.Linear(1024, 1024),
            batch=lambda n: torch.randn(n, 1024),
            loss=lambda model, batch: model(batch).sum(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, **options),
        )

    size = 4 * (1024 * 1024 + 1024)
    default, fused = predict(adamw(), 1), predict(adamw(fused=True), 1)
    assert default.report.phase_at_peak == "optimizer"
    assert default.live_peak - fused.live_peak == pytest.approx(size, rel=0.01)
    assert any("fused=True" in warning for warning in default.warnings)


def test_an_extra_step_changes_nothing():
    def build():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(8, 64)

        def step():
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

        return model, optimizer, step

    assert predict_build(build).live_peak == predict_build(build, steps=4).live_peak


# ---- CUDA's meaning -------------------------------------------------------------------------------------------------


def attention_call(**changes) -> AttentionCall:
    usual = dict(dtype=torch.bfloat16, heads=8, key_heads=8, head_size=64, value_size=64, queries=128, keys=128)
    state = dict(mask=False, causal=True, dropout=False, requires_grad=True, dense_rows=True)
    return AttentionCall(**(usual | state | changes))


@pytest.mark.parametrize(
    ("changes", "backend", "reason"),
    [
        ({}, "flash", "half precision"),
        ({"dtype": torch.float32}, "efficient", "needs fp16 or bf16"),
        ({"mask": True}, "efficient", "takes no mask"),
        ({"capability": (7, 5), "dtype": torch.float16}, "efficient", "needs an Ampere card"),
        ({"capability": (7, 5)}, "math", "does not take bf16"),
        ({"key_heads": 2, "enable_gqa": True}, "flash", "half precision"),
        ({"key_heads": 2, "enable_gqa": True, "mask": True}, "math", "no grouped-query form"),
        ({"dtype": torch.float64}, "math", "does not take fp64"),
        ({"head_size": 320, "value_size": 320}, "efficient", "head sizes up to 256"),
        ({"dense_rows": False}, "math", "contiguous"),
    ],
)
def test_attention_takes_the_kernel_that_pytorchs_rules_name(changes, backend, reason):
    found, why = choose_backend(attention_call(**changes))
    assert found == backend
    assert reason in why


def test_switches_of_the_user_are_respected():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert choose_backend(attention_call())[0] == "math"


def test_the_math_kernel_is_told_with_its_reason_and_its_cost():
    masked = predict(workload(preset("tiny", attention="mask")), 8, precision="bf16-true")
    causal = predict(workload("tiny"), 8, precision="bf16-true")
    assert (masked.attention_kernels, causal.attention_kernels) == ("math", "flash")
    assert causal.live_peak < masked.live_peak
    (warning,) = [text for text in masked.warnings if "math backend" in text]
    assert "takes no mask" in warning and "grouped-query" in warning


def test_hidden_workspaces_are_those_of_pytorchs_source():
    query, key = torch.empty(2, 8, 100, 64, device="meta"), torch.empty(2, 2, 100, 64, dtype=torch.bfloat16, device="meta")
    # dq in fp32 over 128 rows, row sums, and dk, dv of every head before they are summed.
    assert flash_backward(query, key) == 4 * 2 * 8 * 128 * 64 + 4 * 2 * 8 * 128 + 2 * 2 * 100 * 8 * 64 * 2
    assert efficient_backward(query) == 2 * 8 * (2 * (4 * 64 * 64 + 16) + 4 * 100)
    assert cublas_workspace((8, 0)) == 8_519_680
    assert cublas_workspace((9, 0)) == 32 * 2**20


def test_a_step_holds_a_cublas_workspace_for_each_of_its_two_threads():
    events = predict(linear_chain(), 2, gpu="H100").trace.events
    held = [event for event in events if event.op == "labkit.cublas_workspace" and event.kind == "alloc"]
    assert [event.nbytes for event in held] == [32 * 2**20] * 2
    assert all(is_hidden(event) for event in held)


def saved_bytes(loss, *, precision="bf16-mixed", width=64) -> int:
    found = predict(
        Workload(
            model=lambda: nn.Linear(width, width),
            batch=lambda n: torch.randn(n, width),
            loss=loss,
        ),
        1024,
        precision=precision,
    )
    frame = found.report.timeline
    return int(frame.loc[frame["phase"] == "forward", "activations"].max())


def test_dropout_keeps_a_mask_of_one_byte():
    plain = saved_bytes(lambda model, x: (model(x) ** 2).sum(), precision="32-true")
    dropped = saved_bytes(lambda model, x: (F.dropout(model(x), 0.5) ** 2).sum(), precision="32-true")
    assert dropped - plain == 1024 * 64


def test_layer_norm_runs_in_fp32_under_cudas_autocast():
    def normed(model, x):
        return F.layer_norm(model(x), (64,)).mean()

    def plain(model, x):
        return model(x).float().mean()

    # The fp32 copy of its bf16 input (4 bytes an element) with mean and reciprocal deviation (4 bytes a row each).
    assert saved_bytes(normed) - saved_bytes(plain) >= 1024 * 64 * 4 + 2 * 1024 * 4


def test_torchs_rms_norm_is_one_kernel_that_keeps_its_input_and_a_number_a_row():
    def normed(model, x):
        return F.rms_norm(model(x), (64,), model.weight[0]).mean()

    def plain(model, x):
        return model(x).mean()

    assert saved_bytes(normed, precision="32-true") - saved_bytes(plain, precision="32-true") == 1024 * 64 * 4 + 1024 * 4


def test_the_patches_end_with_the_prediction():
    predict(workload("tiny"), 1)
    x = torch.randn(4, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.layer_norm(x.bfloat16(), (64,)).dtype == torch.bfloat16
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q).sum().backward()
    assert q.grad is not None


def test_offloaded_activations_leave_the_card():
    kept = predict(workload("tiny"), 8)
    gone = predict(workload("tiny"), 8, checkpointing="offload")
    assert gone.by_category["activations"] < 0.6 * kept.by_category["activations"]


def test_the_same_prediction_twice_is_the_same():
    first, second = (predict(workload("tiny"), 2, precision="bf16-mixed", checkpointing="full") for _ in range(2))
    assert first.trace == second.trace


def test_the_limit_decides_as_the_replay_does():
    found = predict(workload("tiny"), 4)
    assert fits(found.trace, found.reserved_peak)
    assert not fits(found.trace, found.live_peak)
    assert replay(found.trace, expandable=True)[0] >= found.live_peak


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_an_operation_whose_size_depends_on_values_is_named():
    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x)[x[:, 0] > 0].sum()

    picky = Workload(model=Picks, batch=lambda n: torch.randn(n, 8), loss=lambda model, batch: model(batch))
    with pytest.raises(UnknownMemory, match=r"aten\.\w+.* in module 'Picks' .*depends on the values"):
        predict(picky, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"device": "tpu"}, "device 'tpu' cannot be predicted"),
        ({"gpu": "abacus"}, "GPU 'abacus'"),
        ({"precision": "8-true"}, "precision '8-true' is not one of"),
        ({"checkpointing": "half"}, "checkpointing 'half' is not one of"),
        ({"device": "cpu", "gpu": "T4"}, "device 'cpu' has no gpu"),
    ],
)
def test_bad_input_gets_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        predict(workload("tiny"), **({"batch_size": 1} | options))


# ---- other people's models ------------------------------------------------------------------------------------------


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return lambda: transformers.LlamaForCausalLM(config)


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, use_cache=False)
    return lambda: transformers.GPT2LMHeadModel(config)


class Bottleneck(nn.Module):
    """ResNet's 1x1, 3x3, 1x1 block (He et al. 2015)."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet50():
    stages, inputs = [], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            stages.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


class Tagger(nn.Module):
    """Two LSTM layers and a head."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def vit():
    from labkit.memory.published_models import Vit

    return Vit(classes=10, width=64, layers=2, heads=4, hidden=128, image=64)


def tokens(n):
    return torch.zeros(n, 32, dtype=torch.long)


def language_loss(model, batch):
    return model(input_ids=batch, labels=batch).loss


def image_loss(model, batch):
    return F.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))


FOREIGN = {
    "llama": (llama, tokens, language_loss),
    "gpt2": (gpt2, tokens, language_loss),
    "vit": (lambda: vit, lambda n: torch.randn(n, 3, 64, 64), image_loss),
    "resnet50": (lambda: resnet50, lambda n: torch.randn(n, 3, 64, 64), image_loss),
    "lstm": (lambda: Tagger, lambda n: torch.randn(n, 12, 16), lambda model, batch: model(batch).square().mean()),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_models_that_are_not_ours_are_predicted_and_checked_on_the_cpu(name):
    make, batch, loss = FOREIGN[name]
    foreign = Workload(model=make(), batch=batch, loss=loss, name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = measure_workload(foreign, 2, device="cpu", allocator=False)
        predicted = predict(foreign, 2, device="cpu")
        on_card = predict(foreign, 2, precision="bf16-mixed", gpu="RTX 3060")
    assert predicted.live_peak == measured.peak_bytes
    assert on_card.allocated_peak > 0
    assert any("cuDNN" in text for text in on_card.warnings) == (name in ("vit", "resnet50", "lstm"))
    gc.collect()


def test_a_loop_of_ones_own_is_predicted_as_it_is_measured():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = torch.randn(16, 32)

        def step():
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()

        return model, optimizer, step, data

    model, optimizer, step, data = build()
    measured = measure(step, model=model, optimizer=optimizer, inputs=data, allocator=False)
    assert predict_build(build, device="cpu").live_peak == measured.peak_bytes


def test_a_batch_that_nothing_holds_is_a_batch_of_zero():
    found = max_batch(workload("tiny"), "1 MB")
    assert found.batch == 0 and found.prediction is None and found.limited_by
