"""The capstone, notebook 11: two trainings that do not fit, and settings that make them fit."""

from dataclasses import dataclass
from typing import Any

import torch

from labkit import scale
from labkit.exercises.core import Answer, Exercise, Wrong, expect, refuse
from labkit.memory.planning import budget_bytes
from labkit.memory.prediction import Prediction, predict
from labkit.memory.units import format_bytes, parse_bytes
from labkit.techniques.checkpointing import parse_policy
from labkit.techniques.precision import as_precision
from labkit.training.course import workload
from labkit.training.model import preset
from labkit.workload import Workload

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A training, the memory there is for it, and how many examples one optimizer step must average over."""

    workload: Workload
    examples: int
    #: What the tensors (on this machine) or the allocator (on a card) may take, in bytes.
    budget: int
    gpu: str | None = None

    def __repr__(self) -> str:
        where = f"on a card of the kind {self.gpu}" if self.gpu else "on this machine"
        return (
            f"{self.workload.name} {where}: {self.examples} examples a step within "
            f"{format_bytes(self.budget, binary=self.gpu is not None)}"
        )

    def predict(self, settings: Settings) -> Prediction:
        """The predicted step under `settings`."""
        return predict(
            self.workload,
            settings["batch_size"],
            precision=settings["precision"],
            checkpointing=settings["checkpointing"],
            # From the third micro-batch on only its tokens are new: a few are exact enough for many.
            micro_batches=min(settings["accumulate"], 8),
            device="cuda" if self.gpu else "cpu",
            gpu=self.gpu,
        )

    def peak(self, settings: Settings) -> int:
        """The predicted peak under `settings`, in bytes; see `peak_of`."""
        return self.peak_of(self.predict(settings))

    def peak_of(self, predicted: Prediction) -> int:
        """A prediction's peak in bytes: of the tensors on this machine, of the allocator's blocks on a card."""
        return predicted.allocated_peak if self.gpu else predicted.live_peak

    def plain(self) -> Settings:
        """The settings one starts from: fp32, nothing checkpointed, all examples at once."""
        return {"precision": "32-true", "checkpointing": "none", "batch_size": self.examples, "accumulate": 1}


def here() -> Task:
    """The training that runs in the notebook, at its scale."""
    chosen = workload(scale.pick(ci="tiny", laptop="small"))
    return Task(workload=chosen, examples=32, budget=parse_bytes(scale.pick(ci="20 MB", laptop="80 MB")))


def card() -> Task:
    """The training for a card that need not be there."""
    chosen = scale.pick(ci=preset("gpt2-like", layers=2, vocab=8192), laptop="gpt2-like")
    budget, _ = budget_bytes(None, "RTX 3060")
    return Task(
        workload=workload(chosen), examples=64, budget=scale.pick(ci=parse_bytes("2 GiB"), laptop=budget), gpu="RTX 3060"
    )


def _check_settings(task: Task, found: Settings) -> None:
    names = ("precision", "checkpointing", "batch_size", "accumulate")
    expect(
        isinstance(found, dict) and set(found) == set(names),
        f"the answer is a dict with the keys {', '.join(names)}; your function gave {found!r}",
    )
    for name in ("batch_size", "accumulate"):
        whole = isinstance(found[name], int) and not isinstance(found[name], bool) and found[name] >= 1
        expect(whole, f"{name} is a whole number of at least 1 (a plain int), not {found[name]!r}")
    for name in ("precision", "checkpointing"):
        expect(isinstance(found[name], str), f"{name} is a name, such as '32-true' or 'full', not {found[name]!r}")
    try:
        setting = as_precision(found["precision"])
        parse_policy(found["checkpointing"])
    except (ValueError, TypeError) as error:
        refuse(str(error))
    examples = found["batch_size"] * found["accumulate"]
    expect(
        examples == task.examples,
        f"batch_size x accumulate is {examples}, but a step has to average over {task.examples} examples",
    )
    expect(
        torch.finfo(setting.parameter_dtype).bits >= 32 or setting.update != "plain",
        f"{setting.name} rounds small updates away, as notebook 05 showed: keep the weights in fp32 or take one of its cures",
    )
    expect(
        setting.autocast_dtype != torch.float16 or setting.scaled,
        f"{setting.name} loses small gradients, as notebook 06 showed: scale the loss",
    )
    predicted = task.predict(found)
    sizes = [format_bytes(size, binary=task.gpu is not None) for size in (task.peak_of(predicted), task.budget)]
    expect(
        task.peak_of(predicted) <= task.budget,
        f"predicted peak {sizes[0]}, which is over the budget of {sizes[1]}: keep less at once (batch_size, checkpointing)",
    )
    expect(
        not task.gpu or predicted.fits(task.budget),
        f"the blocks, {sizes[0]}, are within the {sizes[1]}, but the segments that they are cut from are not: leave more room",
    )


# ---- 11-here --------------------------------------------------------------------------------------------------------


def my_settings() -> dict[str, str | int]:
    """Settings for the task here: {"precision": …, "checkpointing": …, "batch_size": …, "accumulate": …}."""
    return {"precision": "32-true", "checkpointing": "full", "batch_size": 8, "accumulate": 4}


def _check_here(answer: Answer) -> None:
    _check_settings(here(), answer())


def _all_at_once() -> Settings:
    return {"precision": "32-true", "checkpointing": "full", "batch_size": 32, "accumulate": 1}


def _forgets_to_accumulate() -> Settings:
    return {"precision": "32-true", "checkpointing": "full", "batch_size": 8, "accumulate": 1}


def _pure_bf16() -> Settings:
    return {"precision": "bf16-true", "checkpointing": "full", "batch_size": 8, "accumulate": 4}


# ---- 11-saved -------------------------------------------------------------------------------------------------------


def saved(before: dict[str, int], after: dict[str, int]) -> tuple[str, float]:
    """The category whose bytes fell most, and its fall divided by all that was saved, from two dicts of bytes by category."""
    falls = {name: before[name] - after[name] for name in before}
    most = max(falls, key=falls.__getitem__)
    return most, falls[most] / (sum(before.values()) - sum(after.values()))


_BEFORE = {"parameters": 10, "gradients": 10, "optimizer": 20, "activations": 100, "temporaries": 40, "inputs": 1}


def _check_saved(answer: Answer) -> None:
    halved = {name: size // 2 for name, size in _BEFORE.items()} | {"inputs": 1}
    found = answer(_BEFORE, halved)
    pair = isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], int | float)
    expect(pair, f"the answer is a pair (category, part), the part a number such as 0.5, not {found!r}")
    expect(found[0] == "activations", f"100 bytes of activations became 50, which is the largest fall; you named {found[0]!r}")
    expect(
        abs(found[1] - 50 / 181) > 1e-9, "50 of 181 is the part of the first peak; the question is the part of what was saved"
    )
    expect(abs(found[1] - 50 / 90) < 1e-9, f"50 of 90 bytes saved is {50 / 90:.3f}, your function gave {found[1]:.3f}")
    found = answer(_BEFORE, _BEFORE | {"activations": 90, "temporaries": 5, "gradients": 20})
    expect(
        found[0] == "temporaries",
        f"temporaries fell by 35, activations by 10 from a larger number: the fall counts; you named {found[0]!r}",
    )
    expect(abs(found[1] - 1.0) < 1e-9, f"35 fell, and 35 were saved since gradients grew: the part is 1, not {found[1]:.3f}")


def _largest(before: dict[str, int], after: dict[str, int]) -> tuple[str, float]:
    most = max(before, key=before.__getitem__)
    return most, (before[most] - after[most]) / (sum(before.values()) - sum(after.values()))


def _part_of_all(before: dict[str, int], after: dict[str, int]) -> tuple[str, float]:
    most, _ = saved(before, after)
    return most, (before[most] - after[most]) / sum(before.values())


def _only_falls(before: dict[str, int], after: dict[str, int]) -> tuple[str, float]:
    most, _ = saved(before, after)
    return most, (before[most] - after[most]) / sum(max(before[name] - after[name], 0) for name in before)


# ---- 11-card --------------------------------------------------------------------------------------------------------


def my_card_settings() -> dict[str, str | int]:
    """Settings for the task on the card: {"precision": …, "checkpointing": …, "batch_size": …, "accumulate": …}."""
    return {"precision": "bf16-mixed", "checkpointing": "full", "batch_size": 8, "accumulate": 8}


def _check_card(answer: Answer) -> None:
    _check_settings(card(), answer())


def _too_large() -> Settings:
    return {"precision": "bf16-mixed", "checkpointing": "none", "batch_size": 32, "accumulate": 2}


def _unscaled() -> Settings:
    return {"precision": "16-mixed-unscaled", "checkpointing": "full", "batch_size": 8, "accumulate": 8}


def _size_in_words() -> Settings:
    return {"precision": "bf16-mixed", "checkpointing": "full", "batch_size": "8", "accumulate": 8}


def _unknown_precision() -> Settings:
    return {"precision": "bf16", "checkpointing": "full", "batch_size": 8, "accumulate": 8}


def _unknown_policy() -> Settings:
    return {"precision": "bf16-mixed", "checkpointing": "all", "batch_size": 8, "accumulate": 8}


def _policy_as_a_set() -> Settings:
    return {"precision": "bf16-mixed", "checkpointing": {0, 1}, "batch_size": 8, "accumulate": 8}


def _a_list() -> list[Any]:
    return ["bf16-mixed", "full", 8, 8]


EXERCISES = [
    Exercise(
        id="11-here",
        solution=my_settings,
        check=_check_here,
        hints=(
            "Look at the table: which cells are within the budget?",
            "Fewer examples at once, and more such micro-batches in one optimizer step, leave the gradient as it was.",
            "`batch_size` 8 and `accumulate` 4 make 32 examples; find a checkpointing with which 8 examples fit.",
        ),
        wrong=(
            Wrong(_all_at_once, "checkpoints, but still takes all examples at once", "over the budget"),
            Wrong(_forgets_to_accumulate, "makes the batch smaller and the training another one", "average over 32"),
            Wrong(_pure_bf16, "saves memory on the weights and loses their updates", "notebook 05"),
        ),
        note="Several settings fit. fp32 with every block checkpointed is the safest: it changes nothing but the time.",
    ),
    Exercise(
        id="11-saved",
        solution=saved,
        check=_check_saved,
        hints=(
            "Subtract category by category.",
            "The largest fall need not be the largest category.",
            "Divide that fall by the difference of the two sums: categories that grew count too.",
        ),
        wrong=(
            Wrong(_largest, "names the largest category instead of the largest fall", "the fall counts"),
            Wrong(_part_of_all, "divides by the first peak", "part of what was saved"),
            Wrong(_only_falls, "leaves out what grew", "since gradients grew"),
        ),
        note="A saving belongs to a category; where it is not the one you aimed at, look again at what the setting does.",
    ),
    Exercise(
        id="11-card",
        solution=my_card_settings,
        check=_check_card,
        hints=(
            "The prediction of the largest batches in the cell above tells where to look.",
            "64 is 8 x 8: a batch that divides it, with so many micro-batches.",
            "Mixed precision keeps fp32 weights; with every block checkpointed 8 examples fit.",
        ),
        wrong=(
            Wrong(_too_large, "relies on the precision alone", "over the budget"),
            Wrong(_unscaled, "takes fp16 without scaling the loss", "notebook 06"),
            Wrong(_size_in_words, "writes a number as text", "a plain int), not '8'"),
            Wrong(_unknown_precision, "takes a format's name for a setting's", "precision 'bf16' is not one of"),
            Wrong(_unknown_policy, "makes a policy's name up", "'all'"),
            Wrong(_policy_as_a_set, "gives the blocks instead of a policy's name", "checkpointing is a name"),
            Wrong(_a_list, "gives the values without their names", "a dict with the keys"),
        ),
        note="None of this needed the card. Run it there once, and compare `torch.cuda.max_memory_allocated()` with this.",
    ),
]
