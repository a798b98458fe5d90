"""Training runs: the same numbers every time, resumed to the bit, and results whatever happens on the way."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from labkit.techniques.step import TrainingStep
from labkit.training import ModelConfig, RunResult, TrainConfig, checkpoint, synthetic, train, workload
from labkit.training.data import Batches
from labkit.training.loop import PATIENCE, divergence, mean_loss, schedule
from labkit.workload import Workload

MODEL = ModelConfig(hidden=32, intermediate=64, layers=2, heads=2, kv_heads=1, sequence=16, dropout=0.1)
#: What the clock decides; everything else must repeat to the bit.
CLOCK = ["step_ms", "tokens_per_s"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_PROGRESS", "0")


def course(**options: Any) -> Workload:
    return workload(MODEL, data="synthetic", **options)


def config(**options: Any) -> TrainConfig:
    return TrainConfig(**{"workload": course(), "steps": 12, "batch_size": 32, "warmup": 2, "evaluate_every": 5} | options)


def regression(**options: Any) -> Workload:
    """A workload that is not the course's: it draws its batches from torch's global generator."""
    parts: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        "batch": lambda n: (lambda x: (x, x.sum(1, keepdim=True)))(torch.randn(n, 4)),
        "loss": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    }
    return Workload(**parts | options)


def assert_same(one: RunResult, other: RunResult) -> None:
    pd.testing.assert_frame_equal(one.history.drop(columns=CLOCK), other.history.drop(columns=CLOCK), check_exact=True)
    assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


def interrupt_at(step: int, batch: Callable[[int], Any]) -> Callable[[int], Any]:
    """`batch`, but the learner presses Ctrl-C when it is asked for the batch of `step`."""
    drawn = 0

    def draw(size: int) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn == step:
            raise KeyboardInterrupt
        return batch(size)

    return draw


class Interrupted(Batches):
    """Another's batches, interrupted at a step; it passes the state of the others through."""

    def __init__(self, batches: Batches, step: int) -> None:
        self.batches, self.name, self.sequence, self.generator = batches, batches.name, batches.sequence, batches.generator
        self.draw = interrupt_at(step, batches)

    def __call__(self, size: int) -> Any:
        return self.draw(size)

    def validation(self, count: int) -> Any:
        return self.batches.validation(count)


def test_the_loss_comes_down_to_the_entropy_rate() -> None:
    load = workload(replace(MODEL, hidden=64, dropout=0.0), data="synthetic", learning_rate=1e-2)
    result = train(config(workload=load, steps=80, evaluate_every=0))
    assert result.status == "ok" and result.reason == ""
    assert result.history["loss"][0] == pytest.approx(math.log(256), rel=0.02)
    assert synthetic.entropy_rate() - 0.02 < result.val_loss < synthetic.entropy_rate() + 0.05


def test_the_same_seed_gives_the_same_numbers_and_another_does_not() -> None:
    load = course()
    first = train(config(workload=load))
    assert_same(first, train(config(workload=load)))
    assert first.train_loss != train(config(workload=load, seed=1)).train_loss


def test_a_preset_can_be_named() -> None:
    result = train(TrainConfig(workload="tiny", steps=2, batch_size=2))
    assert result.model.config.hidden == 128 and result.status == "ok"


def test_a_wider_model_gets_a_lower_learning_rate() -> None:
    rates = {}
    for name in ("tiny", "small"):
        load = workload(name)
        rates[name] = {group["lr"] for group in load.optimizer(load.model().parameters()).param_groups}
    assert rates == {"tiny": {3e-3}, "small": {1e-3}}


def test_only_matrices_decay() -> None:
    load = course(weight_decay=0.3)
    matrices, scales = load.optimizer(load.model().parameters()).param_groups
    assert (matrices["weight_decay"], scales["weight_decay"]) == (0.3, 0.0)
    assert {p.dim() for p in matrices["params"]} == {2} and {p.dim() for p in scales["params"]} == {1}


def test_the_history_has_a_row_for_every_step() -> None:
    result = train(config(precision="16-mixed"))
    history = result.history
    names = ["step", "loss", "lr", "grad_norm", "scale", "skipped", "step_ms", "tokens_per_s", "val_loss"]
    assert list(history) == names
    assert list(history["step"]) == list(range(1, 13))
    assert list(history.index[history["val_loss"].notna()] + 1) == [5, 10, 12]
    assert (history["scale"] == 65536).all() and not history["skipped"].any()
    assert result.val_loss == history["val_loss"].iloc[-1]
    assert result.train_loss == pytest.approx(history["loss"].tail(10).mean())
    assert result.step_ms == history["step_ms"][3:].median()
    assert history["tokens_per_s"][0] == pytest.approx(32 * 16 / history["step_ms"][0] * 1e3)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = list(train(config(steps=12, warmup=3, learning_rate=8e-3)).history["lr"])
    assert rates[:4] == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert schedule(12, total=12, warmup=3, final=0.1) == pytest.approx(0.1)
    assert schedule(3 + 4, total=3 + 8, warmup=3, final=0.0) == pytest.approx(0.5)
    assert schedule(0, total=1, warmup=0, final=0.5) == 1


def test_the_workloads_own_learning_rates_are_kept_when_none_is_given() -> None:
    def two_rates(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": 1e-2}, {"params": rest, "lr": 1e-3}])

    result = train(config(workload=regression(optimizer=two_rates), warmup=0))
    assert result.history["lr"][0] == 1e-2


def test_a_skipped_step_uses_up_no_warm_up() -> None:
    # 2^16 times a gradient above 1 is more than fp16 holds, so the scaler must skip until the scale is small enough.
    load = course()
    large = replace(load, loss=lambda model, batch: load.loss(model, batch) * 100)
    history = train(config(workload=large, precision="16-mixed", steps=20, warmup=8, learning_rate=1e-4)).history
    skipped = history["skipped"]
    assert skipped[0] and not skipped.iloc[-1]
    updates_before = (~skipped).cumsum().shift(fill_value=0).astype(int)
    assert list(history["lr"]) == [1e-4 * schedule(u, total=20, warmup=8, final=0.1) for u in updates_before]
    halved = history["scale"].diff().shift(-1)[:-1] < 0
    assert list(halved) == list(skipped[:-1])


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    fixed = [torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) for i in range(6)]

    def batches(parts: int) -> Callable[[int], Any]:
        rows = iter([row for batch in fixed for row in batch.chunk(parts)])
        return lambda n: (lambda x: (x, x.sum(1, keepdim=True)))(next(rows))

    whole = train(config(workload=regression(batch=batches(1)), steps=6, batch_size=8))
    split = train(config(workload=regression(batch=batches(4)), steps=6, batch_size=2, accumulate=4))
    torch.testing.assert_close(split.history["loss"].to_list(), whole.history["loss"].to_list())
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_clipping_limits_the_true_gradient_under_the_scaler() -> None:
    def hundredth(model: nn.Module, batch: Any) -> Tensor:
        return regression().loss(model, batch) / 100

    moved: dict[str, Tensor] = {}
    for precision in ("32-true", "16-mixed"):
        # A hundredth of the loss, so that the first scale does not overflow and no step is skipped.
        load = regression(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), loss=hundredth)
        result = train(config(workload=load, precision=precision, steps=1, warmup=0, clip=0.001))
        torch.manual_seed(0)
        start = regression().model()
        pairs = zip(result.model.parameters(), start.parameters(), strict=True)
        moved[precision] = torch.cat([(after - before).detach().flatten() for after, before in pairs])
        assert result.history["grad_norm"][0] > 0.001
        assert moved[precision].norm().item() == pytest.approx(0.001, rel=1e-3)
    torch.testing.assert_close(moved["32-true"], moved["16-mixed"], atol=1e-5, rtol=1e-2)


def test_without_clipping_there_is_no_norm() -> None:
    assert train(config(steps=2, clip=None)).history["grad_norm"].isna().all()


def test_a_workload_of_ones_own_trains_and_is_validated_on_ones_own_batches() -> None:
    x = torch.randn(64, 4)
    held_out = [(x, x.sum(1, keepdim=True))]
    load = regression(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-2))
    result = train(config(workload=load, steps=150, batch_size=32, validation=held_out))
    assert result.val_loss < 0.5 < result.history["loss"][0]
    assert math.isnan(train(config(workload=load, steps=2)).val_loss)


def test_a_validation_loss_weights_batches_by_their_tokens_and_leaves_dropout_out() -> None:
    step = TrainingStep(course())
    tokens, targets = course().batch.validation(10)
    whole = mean_loss(step, [(tokens, targets)])
    assert mean_loss(step, [(tokens[:7], targets[:7]), (tokens[7:], targets[7:])]) == pytest.approx(whole, abs=1e-6)
    assert step.model.training


def test_validation_does_not_change_the_run() -> None:
    often, never = train(config(evaluate_every=1)), train(config(evaluate_every=0))
    assert list(often.history["loss"]) == list(never.history["loss"])


def test_checkpointing_does_not_change_the_run_and_is_taken_off_the_model() -> None:
    plain, recomputed = train(config()), train(config(checkpointing="full"))
    assert_same(plain, recomputed)
    assert all("forward" not in vars(block) for block in recomputed.model.blocks)


# Divergence is a result.


def test_pure_fp16_diverges_and_is_reported_early() -> None:
    result = train(config(precision="16-true", steps=100))
    assert result.status == "diverged"
    assert len(result.history) < 20
    assert "not finite" in result.reason
    assert math.isnan(result.train_loss)


def test_a_run_too_short_for_patience_still_says_that_it_diverged() -> None:
    result = train(config(precision="16-true", steps=3))
    assert result.status == "diverged" and result.reason == "the loss of the last step is nan"


def test_a_loss_far_above_the_start_is_divergence() -> None:
    result = train(config(workload=regression(optimizer=lambda p: torch.optim.SGD(p, lr=3.0)), clip=None, steps=200, warmup=0))
    assert result.status == "diverged" and len(result.history) < 200


@pytest.mark.parametrize(
    ("recent", "start", "bad"),
    [
        ([9.0] * PATIENCE, 4.0, True),
        ([7.9] * PATIENCE, 4.0, False),
        ([math.nan, math.inf, 9.0, 9.0, math.nan], 4.0, True),
        ([math.nan] * (PATIENCE - 1), 4.0, False),
        ([math.nan] * (PATIENCE - 1) + [3.0], 4.0, False),
        ([math.nan] * PATIENCE, math.nan, True),
        ([-9.0] * PATIENCE, -4.0, False),
        ([5.0] * PATIENCE, math.nan, False),
    ],
)
def test_divergence_needs_several_bad_losses_in_a_row(recent: list[float], start: float, bad: bool) -> None:
    assert bool(divergence(recent, start=start)) == bad


# The keyboard.


def test_an_interrupted_run_returns_the_steps_it_took() -> None:
    load = course()
    result = train(config(workload=replace(load, batch=Interrupted(load.batch, step=8))))
    assert result.status == "interrupted"
    assert len(result.history) == 7
    assert list(result.history["loss"]) == list(train(config()).history["loss"][:7])


def test_a_run_interrupted_before_its_first_step_has_an_empty_history() -> None:
    result = train(config(workload=regression(batch=interrupt_at(1, lambda n: None))))
    assert result.status == "interrupted" and result.history.empty
    assert math.isnan(result.train_loss) and math.isnan(result.val_loss) and math.isnan(result.step_ms)


# Saved and resumed.


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-true-sr", "bf16-true-kahan"])
def test_a_resumed_run_is_to_the_bit_the_run_that_never_stopped(precision: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"precision": precision, "save_every": 3, "accumulate": 2}
    expected = train(config(**options))
    load = course()
    options["save_to"] = tmp_path / "run.pt"
    stopped = train(config(workload=replace(load, batch=Interrupted(load.batch, step=2 * 8)), **options))
    assert stopped.status == "interrupted" and len(stopped.history) == 7
    torch.manual_seed(12345)
    assert_same(train(config(**options, resume=True)), expected)


def test_a_workload_that_draws_from_torchs_generator_resumes_exactly_too(tmp_path: Path) -> None:
    expected = train(config(workload=regression()))
    options: dict[str, Any] = {"save_to": tmp_path / "run.pt", "save_every": 4}
    train(config(workload=regression(batch=interrupt_at(7, regression().batch)), **options))
    assert_same(train(config(workload=regression(), **options, resume=True)), expected)


def test_the_scaler_resumes_with_its_scale(tmp_path: Path) -> None:
    load = course()
    large = replace(load, loss=lambda model, batch: load.loss(model, batch) * 100)
    options: dict[str, Any] = {"precision": "16-mixed", "warmup": 8, "save_every": 1, "steps": 16}
    expected = train(config(workload=large, **options))
    options["save_to"] = tmp_path / "run.pt"
    train(config(workload=replace(large, batch=Interrupted(load.batch, step=5)), **options))
    resumed = train(config(workload=large, **options, resume=True))
    assert resumed.history["skipped"].sum() >= 2
    assert_same(resumed, expected)


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_to": tmp_path / "run.pt"}
    assert_same(train(config(**options)), train(config(**options, resume=True)))


def test_a_state_gone_bad_does_not_replace_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    train(config(precision="16-true", save_to=path, save_every=1))
    assert len(checkpoint.load(path)["history"]) == 1


@pytest.mark.parametrize("moment", ["torch.save", "os.fsync", "os.replace"])
def test_a_save_cut_short_leaves_the_old_file_whole(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pt"
    checkpoint.save(path, {"step": 1})

    def cut(*arguments: Any) -> None:
        if moment == "torch.save":
            arguments[1].write(b"half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moment, cut)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(path, {"step": 2})
    assert checkpoint.load(path)["step"] == 1
    assert os.listdir(tmp_path) == ["run.pt"]
    checkpoint.save(path, {"step": 3})
    assert checkpoint.load(path)["step"] == 3


def test_a_file_left_by_a_killed_save_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run.pt.part").write_bytes(b"half a file")
    checkpoint.save(tmp_path / "run.pt", {"step": 1})
    assert checkpoint.load(tmp_path / "run.pt")["step"] == 1


@pytest.mark.parametrize("keep", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    train(config(steps=1, save_to=path))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ValueError, match="run.pt is damaged or is not a checkpoint; it cannot be resumed from"):
        train(config(save_to=path, resume=True))


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    checkpoint.save(path, {"weights": torch.arange(1000.0)})
    content = bytearray(path.read_bytes())
    content[content.find(torch.tensor([500.0]).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="run.pt is damaged"):
        checkpoint.load(path)


class _Surprise:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_foreign_file_is_refused_and_none_of_its_code_is_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "run.pt", tmp_path / "ran"
    torch.save({"format": checkpoint.FORMAT, "surprise": _Surprise(mark)}, path)
    with pytest.raises(ValueError, match="is damaged or is not a checkpoint"):
        checkpoint.load(path)
    assert not mark.exists()
    path.write_text("a letter to the editor")
    with pytest.raises(ValueError, match="is damaged or is not a checkpoint"):
        checkpoint.load(path)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(ValueError, match="was not written by this version of labkit.training"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"precision": "bf16-mixed"}, "is of a run with precision '32-true', not 'bf16-mixed'"),
        ({"seed": 3}, "seed 0, not 3"),
        ({"batch_size": 8}, "batch_size 32, not 8"),
        ({"learning_rate": 1e-4}, "learning rates"),
        ({"workload": workload(MODEL, data="python")}, "text 'synthetic', not 'python'"),
        ({"workload": workload(replace(MODEL, layers=3), data="synthetic")}, "parameters"),
    ],
)
def test_a_run_of_another_kind_is_not_resumed(other: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    train(config(steps=1, save_to=path))
    with pytest.raises(ValueError, match=words):
        train(config(save_to=path, resume=True, **other))


def test_a_missing_checkpoint_or_folder_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint .*run.pt to resume from"):
        train(config(save_to=tmp_path / "run.pt", resume=True))
    with pytest.raises(FileNotFoundError, match="there is no folder .*missing to save run.pt in"):
        train(config(save_to=tmp_path / "missing" / "run.pt"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"accumulate": 0}, "accumulate must be at least 1, not 0"),
        ({"warmup": -1}, "warmup must be at least 0, not -1"),
        ({"save_every": 0}, "save_every must be at least 1, not 0"),
        ({"evaluate_every": -1}, "evaluate_every must be at least 0, not -1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 or None, not 0.0"),
        ({"clip": math.nan}, "clip must be above 0 or None, not nan"),
        ({"final_rate": 1.5}, "final_rate must be between 0 and 1, not 1.5"),
        ({"resume": True}, "resume needs save_to"),
    ],
)
def test_a_number_out_of_range_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**options)


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="precision '8-true' is not one of"):
        train(config(precision="8-true"))
    with pytest.raises(ValueError, match="preset 'huge' is unknown"):
        train(config(workload="huge"))
