"""What a gradient scaler did over a run: its scale, the steps it skipped, and where it grew."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ScalerEvent:
    """One `update()` of the scaler."""

    step: int
    #: The scale that this step's loss was multiplied by.
    scale: float
    #: The scale after the update.
    next_scale: float

    @property
    def skipped(self) -> bool:
        """Whether the optimizer step was skipped: the scale falls exactly then."""
        return self.next_scale < self.scale

    @property
    def grew(self) -> bool:
        """Whether enough good steps had passed for the scale to grow."""
        return self.next_scale > self.scale


class ScalerTimeline:
    """Records every `update()` of a scaler while the `with` block lasts."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self.events: list[ScalerEvent] = []

    def __enter__(self) -> "ScalerTimeline":
        update = self.scaler.update

        def recording(*args: Any, **options: Any) -> None:
            scale = self.scaler.get_scale()
            update(*args, **options)
            self.events.append(ScalerEvent(len(self.events), scale, self.scaler.get_scale()))

        # An attribute of the instance hides the method of the class; deleting it brings the method back.
        self.scaler.update = recording  # type: ignore[method-assign]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self.scaler.update

    @property
    def skipped(self) -> int:
        """How many steps were skipped."""
        return sum(event.skipped for event in self.events)

    def table(self) -> "pd.DataFrame":
        """A row a step: scale, next scale, skipped, grew."""
        import pandas as pd

        rows = [(e.scale, e.next_scale, e.skipped, e.grew) for e in self.events]
        index = pd.Index([e.step for e in self.events], name="step")
        return pd.DataFrame(rows, index=index, columns=["scale", "next scale", "skipped", "grew"])

    def plot(self) -> "Figure":
        """The scale over the steps, with a cross where a step was skipped and a triangle where the scale grew."""
        from labkit import plots

        grown = sum(event.grew for event in self.events)
        title = f"{self.skipped} of {len(self.events)} steps skipped, {grown} growths of the scale"
        fig, ax = plots.figure(title, x="step", y="loss scale (powers of two)")
        ax.step([e.step for e in self.events], [e.scale for e in self.events], where="mid", color=plots.COLORS["blue"])
        for kind, marker, color, label in (("skipped", "x", "vermilion", "skipped"), ("grew", "^", "green", "grew after")):
            chosen = [event for event in self.events if getattr(event, kind)]
            if chosen:
                x, y = [e.step for e in chosen], [e.scale for e in chosen]
                ax.plot(x, y, marker, color=plots.COLORS[color], markersize=8, markeredgewidth=2, label=label)
        ax.set_yscale("log", base=2)
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
        return fig


def scaler_timeline(scaler: torch.amp.GradScaler) -> ScalerTimeline:
    """Record what `scaler` does, without a change to the loop that uses it.

    Example::

        with scaler_timeline(scaler) as timeline:
            for batch in batches:
                train_one_step(batch)  # calls scaler.update() somewhere
        print(timeline.skipped)
        timeline.plot()

    Raises TypeError for anything that is not a `torch.amp.GradScaler`.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"a scaler_timeline needs a torch.amp.GradScaler, not {type(scaler).__name__}")
    return ScalerTimeline(scaler)
