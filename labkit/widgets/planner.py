"""Planner: will this model, batch, precision, checkpointing and optimizer fit that card?"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import traitlets

from labkit.memory.figures import OVERHEADS
from labkit.memory.gpus import gpus
from labkit.memory.prediction import Prediction, predict
from labkit.memory.report import STACK
from labkit.techniques.precision import PRECISIONS
from labkit.widgets.base import LabWidget, checked, number_between, one_of, script, style

#: What the optimizer keeps is what differs between these.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
CHECKPOINTINGS = ("none", "selective", "full", "sqrt", "offload")
LARGEST_BATCH = 256
#: The straight line goes through the exact predictions at batch 2 and at the current batch, or at 8 where that is smaller.
NEAR, FAR = 2, 8


class Planner(LabWidget):
    """Controls for a model and its training, and its predicted memory as a stacked bar against a card's line.

    `build` makes a `labkit.Workload` of a dictionary of sizes; `presets` names such dictionaries, whose whole numbers can be
    edited. A change is predicted exactly; while the batch is dragged, the bar follows a straight line through two exact
    predictions and says so. Traits to read, set or observe: `sizes`, `batch`, `precision`, `checkpointing`, `optimizer`,
    `gpu`; `prediction` is the last exact one. Bad input raises ValueError and changes nothing.
    """

    _esm = script("dom.js", "planner.js")
    _css = style("planner.css")
    _shown = ("preset", "batch", "precision", "checkpointing", "optimizer", "gpu")

    preset = traitlets.Unicode().tag(sync=True)
    presets = traitlets.Dict().tag(sync=True)
    sizes = traitlets.Dict().tag(sync=True)
    batch = checked(number_between(1, LARGEST_BATCH, whole=True), default=8)
    precision = checked(one_of(*PRECISIONS), default="32-true")
    checkpointing = checked(one_of(*CHECKPOINTINGS), default="none")
    optimizer = checked(one_of(*OPTIMIZERS), default="AdamW")
    gpu = traitlets.Unicode("RTX 3060").tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    #: What the browser draws: parts as [name, bytes at batch 0, bytes an example, bytes now], the card's line, words.
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        build: Callable[[dict[str, Any]], Any],
        presets: Mapping[str, Mapping[str, Any]],
        *,
        preset: str | None = None,
        batch: int = 8,
        precision: str = "32-true",
        checkpointing: str = "none",
        optimizer: str = "AdamW",
        gpu: str = "RTX 3060",
    ) -> None:
        first = preset or next(iter(presets))
        if first not in presets:
            raise ValueError(f"preset {first!r} is not one of {', '.join(presets)}")
        if gpu not in gpus():
            raise ValueError(f"gpu {gpu!r} is not one of {', '.join(gpus())}")
        self._build = build
        self._found: dict[Any, Prediction] = {}
        self._ready = False
        super().__init__(
            preset=first,
            presets={name: dict(sizes) for name, sizes in presets.items()},
            sizes=dict(presets[first]),
            batch=batch,
            precision=precision,
            checkpointing=checkpointing,
            optimizer=optimizer,
            gpu=gpu,
            choices={
                "precision": list(PRECISIONS),
                "checkpointing": list(CHECKPOINTINGS),
                "optimizer": list(OPTIMIZERS),
                "gpu": list(gpus()),
                "largest_batch": LARGEST_BATCH,
            },
        )
        self._ready = True
        self.refresh()

    @property
    def prediction(self) -> Prediction:
        """The exact prediction of what the controls say."""
        return self._predict(self.batch)

    @traitlets.validate("gpu")
    def _known_gpu(self, proposal: Any) -> str:
        if proposal["value"] not in gpus():
            raise traitlets.TraitError(f"gpu {proposal['value']!r} is not one of {', '.join(gpus())}")
        return proposal["value"]

    @traitlets.observe("preset")
    def _take_preset(self, change: Any) -> None:
        if self._ready and change["new"] in self.presets:
            self.sizes = dict(self.presets[change["new"]])

    @traitlets.observe("sizes", "batch", "precision", "checkpointing", "optimizer", "gpu")
    def _changed(self, change: Any) -> None:
        if self._ready:
            self.refresh()

    def refresh(self) -> None:
        """Predict what the controls say and send it to the browser; sizes that make no model become a message there."""
        far = self.batch if self.batch > FAR else FAR
        try:
            now, low, high = (self._predict(batch) for batch in (self.batch, NEAR, far))
        except (ValueError, TypeError) as error:
            self.view = {"error": str(error)}
            return
        card = gpus()[self.gpu]
        base, further = parts(low), parts(high)
        rows = []
        for name, size in parts(now).items():
            slope = (further[name] - base[name]) / (far - NEAR)
            rows.append([name, base[name] - slope * NEAR, slope, size])
        self.view = {
            "parts": rows,
            "batch": self.batch,
            "limit": card.usable,
            "card": card.name,
            "peak": now.limited_by,
            "attention": now.attention_kernels,
            "margin": round(100 * now.margin, 1),
            "warnings": list(now.warnings),
        }

    def _predict(self, batch: int) -> Prediction:
        key = (tuple(self.sizes.items()), batch, self.precision, self.checkpointing, self.optimizer, self.gpu)
        if key not in self._found:
            workload = replace(self._build(dict(self.sizes)), optimizer=OPTIMIZERS[self.optimizer])
            self._found[key] = predict(
                workload, batch, precision=self.precision, checkpointing=self.checkpointing, gpu=self.gpu
            )
        return self._found[key]


def parts(predicted: Prediction) -> dict[str, int]:
    """What nvidia-smi would show, split: categories at the peak, workspaces and rounding, unused segments, CUDA's context."""
    workspaces, unused, context = OVERHEADS
    return {name: predicted.by_category[name] for name in STACK} | {
        workspaces: max(predicted.allocated_peak - predicted.live_peak, 0),
        unused: predicted.reserved_peak - predicted.allocated_peak,
        context: predicted.context,
    }


__all__ = ["OPTIMIZERS", "Planner", "parts"]
