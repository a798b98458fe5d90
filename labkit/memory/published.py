"""Predictions held against published figures: each row of `data/published_memory.csv` run as its source ran it.

A row's scenario repeats what its source says of the script: the order of zero_grad, what a training loop keeps alive, the
optimizer's form, the version's defaults. Nothing is tuned to a row.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.memory.prediction import replay, steady_events
from labkit.memory.published_models import Bert, KorthikantiLayer, Vit
from labkit.memory.trace import Trace, cast_fake, trace_build
from labkit.memory.units import UNITS
from labkit.resources import data_file
from labkit.techniques.checkpointing import apply_checkpointing


@dataclass(frozen=True, slots=True)
class Published:
    """One published figure."""

    id: str
    what: str
    device: str
    metric: str
    unit: str
    value: str
    config: str
    source: str


#: Rows whose figure is a whole training step's memory: the margin is learned from these.
TOTALS = ("ras-", "hf-", "vit-")


def published() -> list[Published]:
    """The rows of `data/published_memory.csv`."""
    with data_file("published_memory.csv").open(encoding="utf-8", newline="") as file:
        return [Published(**row) for row in csv.DictReader(file)]


@cache
def margin() -> float:
    """The largest error against a published total, as a fraction, from `data/validation.csv`; 0.12 where it is not there."""
    try:
        table = pd.read_csv(data_file("validation.csv"))
    except FileNotFoundError:
        return 0.12
    totals = table[table["id"].str.startswith(TOTALS)]
    return float(totals["error_percent"].abs().max()) / 100


def validate(ids: list[str] | None = None, *, progress: Callable[[Any], Any] = iter) -> pd.DataFrame:
    """Predict every published row (or those in `ids`): id, what, metric, unit, published, predicted, error_percent, source.

    Raises ValueError for an id that is not published.
    """
    rows = {row.id: row for row in published()}
    for name in ids or []:
        if name not in rows:
            raise ValueError(f"published figure {name!r} is unknown; there are: {', '.join(rows)}")
    chosen = [rows[name] for name in ids] if ids else list(rows.values())
    return pd.DataFrame([_validated(row) for row in progress(chosen)])


def _validated(row: Published) -> dict[str, Any]:
    predicted = SCENARIOS[row.id]()
    value = 34 + 5 * HEADS * SEQUENCE / WIDTH if row.id == "korth-none" else float(row.value)
    return {
        "id": row.id,
        "what": row.what,
        "metric": row.metric,
        "unit": _unit(row),
        "published": value,
        "predicted": predicted,
        "error_percent": 100 * (predicted / value - 1),
        "source": row.source,
    }


def _unit(row: Published) -> str:
    # Two sources write MB for 2^20 bytes: nvidia-smi, and the kernel table, whose 24,000 is 24,000 MiB exactly.
    return "MiB" if row.unit == "MB" else row.unit


def summary(table: pd.DataFrame) -> dict[str, float]:
    """Of the totals in a validation table: mean absolute error, worst error and bias (mean signed error), in percent."""
    errors = table.loc[table["id"].str.startswith(TOTALS), "error_percent"]
    return {
        "rows": float(len(errors)),
        "mean_absolute": float(errors.abs().mean()),
        "worst": float(errors.loc[errors.abs().idxmax()]),
        "bias": float(errors.mean()),
    }


def summary_sentence(table: pd.DataFrame) -> str:
    """The summary in one sentence."""
    found = summary(table)
    return (
        f"{found['rows']:.0f} published totals: mean absolute error {found['mean_absolute']:.1f} %, "
        f"worst {found['worst']:+.1f} %, bias {found['bias']:+.1f} % (below zero: the prediction is low)."
    )


def page(table: pd.DataFrame, measured: Sequence[Any] = ()) -> str:
    """`docs/validation.md`: the table, what each correction rests on, what is not explained, and records from cards."""
    lines = [
        "# Predicted memory, held against published figures",
        "",
        "Written by `python -m labkit validate --write` from `data/published_memory.csv`. Units are those of the source;",
        "where it wrote MB for 2^20 bytes, MiB stands here.",
        "",
        "| figure | what | unit | published | predicted | error |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for row in table.itertuples():
        numbers = f"{row.published:,.2f} | {row.predicted:,.2f} | {row.error_percent:+.2f} %"
        lines.append(f"| {row.id} | {row.what} | {row.unit} | {numbers} |")
    lines += ["", summary_sentence(table), "", _NOTES.strip(), "", "## Measured on cards", ""]
    lines += [f"- {record.sentence()}" for record in measured] or [
        "No record yet: `python -m labkit calibrate` writes one on a machine with a CUDA device, and this page then shows it."
    ]
    return "\n".join(lines) + "\n"


_NOTES = """
## What each row repeats, and on what grounds

- `cce-*`: the loss of a Gemma-2 head in a function of its own, so that only what autograd keeps survives into backward. The
  gradients are results, not scratch, and are left out on both sides.
- `korth-*`: one fp16 layer's saved tensors at s = 1024, b = 4, h = 2048, a = 16. The rest above 34 and 74 is layer norm's mean
  and reciprocal deviation, which the paper leaves out.
- `ras-*`: the scripts call `zero_grad` between forward and backward, so the gradients of the step before are there during
  forward. PyTorch 2.0's foreach Adam made the denominator as a second new copy (`denom = torch._foreach_add(exp_avg_sq_sqrt,
  eps)`); torch 2.13 adds in place.
- `hf-*`: `transformers`' own AdamW loops over parameters; its Trainer set gradients to zero instead of dropping them; PyTorch
  1.10's softmax backward took its input as well as its result, so one more matrix of scores is kept a layer; and the 1,343
  MiB that the source measures for an empty process are CUDA's context.
- `vit-*`: read off the tutorial's pictures, so they are good to about 0.5 GB at best.

## What is not explained

The half-precision ViT rows (`ras-2` to `ras-4`) stay low by about one activation a layer. The fp32 row of the same script
does not, which points at FlashAttention 1 as PyTorch shipped it in June 2023. We found no document for it and made no
correction. cuDNN's workspace (the patch convolution) is not counted anywhere.
"""


# ---- cross-entropy of a large vocabulary (Cut Your Losses, Wijmans et al. 2024) -------------------------------------


def _head_loss(tokens: int = 8192, vocab: int = 256_000, width: int = 2304, softcap: float = 30.0) -> Trace:
    def build() -> tuple[Any, ...]:
        head = nn.Linear(width, vocab, bias=False, dtype=torch.bfloat16)
        hidden = torch.empty(tokens, width, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.int64)
        head.weight.grad, hidden.grad = torch.empty_like(head.weight), torch.empty_like(hidden)

        def loss() -> Tensor:
            logits = head(hidden)
            logits = torch.tanh(logits / softcap) * softcap
            return F.cross_entropy(logits.float(), targets)

        def step() -> None:
            loss().backward()

        return head, torch.optim.SGD([head.weight]), step, (hidden, hidden.grad, targets)

    return trace_build(build, steps=1)


def _head_peak(part: str) -> float:
    """Peak above what was there before, in MiB: of the forward pass, of the backward pass, of both.

    The gradients of hidden states and weights are results, not scratch, and are not counted, as in the source.
    """
    trace = _head_loss()
    live, marks = 0, {"forward": (0, 0), "backward": (0, 0)}
    starts: dict[str, int] = {}
    results = {8192 * 2304 * 2, 256_000 * 2304 * 2}
    for event in steady_events(trace):
        if event.phase == "before" or event.nbytes in results:
            continue
        starts.setdefault(event.phase, live)
        live += event.nbytes if event.kind == "alloc" else -event.nbytes
        if event.phase in marks:
            marks[event.phase] = (max(marks[event.phase][0], live), starts[event.phase])
    forward, backward = marks["forward"][0], marks["backward"][0]
    peak = {"forward": forward, "backward": backward - marks["backward"][1], "both": max(forward, backward)}[part]
    return round(peak / UNITS["MiB"])


# ---- one layer's saved bytes (Korthikanti et al. 2022) --------------------------------------------------------------

SEQUENCE, BATCH, WIDTH, HEADS = 1024, 4, 2048, 16


def _layer_bytes(*, fused: bool) -> float:
    """Bytes that one fp16 layer keeps for backward, in units of sequence x batch x width."""
    kept: dict[int, int] = {}

    def build() -> tuple[Any, ...]:
        layer = KorthikantiLayer(WIDTH, HEADS, fused=fused)
        cast_fake(layer, torch.float16)
        x = torch.empty(BATCH, SEQUENCE, WIDTH, dtype=torch.float16, requires_grad=True)
        own = {id(p.untyped_storage()) for p in layer.parameters()} | {p.untyped_storage()._cdata for p in layer.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        def step() -> None:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                out = layer(x)
            out.sum().backward()

        return layer, torch.optim.SGD(layer.parameters()), step, x

    trace_build(build, steps=1)
    return sum(kept.values()) / (SEQUENCE * BATCH * WIDTH)


# ---- whole steps ----------------------------------------------------------------------------------------------------


class Adam2023(Optimizer):
    """`torch.optim.Adam` in its foreach form of PyTorch 2.0: the denominator was a second new copy, beside the square roots."""

    def __init__(self, parameters: Any, lr: float = 5e-5) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; moments are made at the first."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            means = [self.state[parameter]["exp_avg"] for parameter in parameters]
            squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
            grads = [parameter.grad for parameter in parameters]
            torch._foreach_lerp_(means, grads, 0.1)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_addcmul_(squares, grads, grads, 0.001)
            roots = torch._foreach_sqrt(squares)
            denominators = torch._foreach_add(roots, 1e-8)
            torch._foreach_addcdiv_(parameters, means, denominators, -group["lr"])


class HuggingFaceAdamW(Optimizer):
    """`transformers.AdamW` of 2022, the Trainer's default then: a loop over parameters with no foreach form."""

    def __init__(self, parameters: Any, lr: float = 5e-5) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; moments are made at the first."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["exp_avg"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["exp_avg_sq"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                denominator = state["exp_avg_sq"].sqrt().add_(1e-8)
                parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"])


def _vit_lightning(batch: int, *, precision: str = "32", accumulate: int = 1, sgd: bool = False) -> float:
    """Reserved peak in GB of rasbt/pytorch-memory-optim: zero_grad stands between forward and backward.

    So the gradients of the step before are there during forward. With accumulation it comes after the optimizer's step.
    """

    def build() -> tuple[Any, ...]:
        model = Vit()
        model.head = nn.Linear(1024, 10)
        if precision == "bf16":
            cast_fake(model, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if sgd else Adam2023(model.parameters())
        scaler = torch.amp.GradScaler("cpu") if precision == "16-mixed" else None
        kept: dict[str, Any] = {}

        def micro_step(index: int) -> None:
            kept["features"] = kept["targets"] = None
            kept["features"], kept["targets"] = torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
            inputs = kept["features"].to(torch.bfloat16) if precision == "bf16" else kept["features"]
            with torch.autocast("cpu", dtype=torch.float16, enabled=precision == "16-mixed"):
                logits = model(inputs).float()
            del inputs
            loss = F.cross_entropy(logits, kept["targets"]) / accumulate
            if accumulate == 1:
                optimizer.zero_grad()
            (scaler.scale(loss) if scaler else loss).backward()
            if index % accumulate == 0:
                scaler.step(optimizer) if scaler else optimizer.step()
                if scaler:
                    scaler.update()
                if accumulate > 1:
                    optimizer.zero_grad()
            kept["loss"], kept["logits"] = loss, logits

        return model, optimizer, lambda: [micro_step(index) for index in range(accumulate)], None

    return replay(trace_build(build, find_inputs=False))[1] / UNITS["GB"]


def _bert_trainer(batch: int, *, accumulate: int = 1, checkpointing: bool = False, mixed: bool = False) -> float:
    """What nvidia-smi showed, in MiB, for Hugging Face's Trainer of January 2022 on a V100.

    Its zero_grad set gradients to zero and kept them, PyTorch 1.10 left cuBLAS's workspace to cuBLAS, and its CUDA 11 loaded
    every kernel at the start: the source measures 1,343 MiB for that context.
    """

    def build() -> tuple[Any, ...]:
        model = Bert()
        if checkpointing:
            apply_checkpointing(model, list(model.layers), "full")
        optimizer = HuggingFaceAdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu") if mixed else None

        def micro_step() -> None:
            tokens, labels = torch.zeros(batch, 512, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
            with torch.autocast("cpu", dtype=torch.float16, enabled=mixed):
                loss = F.cross_entropy(model(tokens), labels) / accumulate
            (scaler.scale(loss) if scaler else loss).backward()

        def step() -> None:
            for _ in range(accumulate):
                micro_step()
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
            optimizer.zero_grad(set_to_none=False)

        return model, optimizer, step, None

    trace = trace_build(build, capability=(7, 0), find_inputs=False)
    return replay(trace)[1] / UNITS["MiB"] + 1343


def _vit_tutorial(*, in_backward: bool) -> float:
    """Allocated peak in GB of PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass"."""

    def build() -> tuple[Any, ...]:
        model = Vit()
        optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()} if in_backward else {}
        together = torch.optim.Adam(model.parameters(), foreach=True)

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(update)

        def step() -> None:
            model(torch.empty(1, 3, 224, 224)).sum().backward()
            if not in_backward:
                together.step()
                together.zero_grad()

        return model, list(optimizers.values()) or together, step, None

    return replay(trace_build(build, find_inputs=False))[0] / UNITS["GB"]


#: How each published row is predicted, in the row's own unit.
SCENARIOS: dict[str, Callable[[], float]] = {
    "cce-fwd": lambda: _head_peak("forward"),
    "cce-bwd": lambda: _head_peak("backward"),
    "cce-both": lambda: _head_peak("both"),
    "korth-none": lambda: _layer_bytes(fused=False),
    "korth-flash": lambda: _layer_bytes(fused=True),
    "ras-1": lambda: _vit_lightning(64),
    "ras-2": lambda: _vit_lightning(64, precision="16-mixed"),
    "ras-3": lambda: _vit_lightning(64, precision="bf16"),
    "ras-4": lambda: _vit_lightning(16, precision="bf16"),
    "ras-5": lambda: _vit_lightning(4, precision="bf16", accumulate=4),
    "ras-6": lambda: _vit_lightning(4, precision="bf16", accumulate=4, sgd=True),
    "hf-1": lambda: _bert_trainer(4),
    "hf-2": lambda: _bert_trainer(1, accumulate=4),
    "hf-3": lambda: _bert_trainer(1, accumulate=4, checkpointing=True),
    "hf-4": lambda: _bert_trainer(4, mixed=True),
    "hf-5": lambda: _bert_trainer(1, accumulate=4, checkpointing=True, mixed=True),
    "vit-adam": lambda: _vit_tutorial(in_backward=False),
    "vit-fused-backward": lambda: _vit_tutorial(in_backward=True),
}
