"""Final losses of several settings over the same seeds: who loses to whom, and by more than chance."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class LossGaps:
    """Losses by setting, one a seed, in the same order of seeds everywhere."""

    losses: Mapping[str, Sequence[float]]
    baseline: str

    @property
    def spread(self) -> float:
        """Standard deviation of the baseline's losses over the seeds; 0 for a single seed."""
        losses = self.losses[self.baseline]
        return statistics.stdev(losses) if len(losses) > 1 else 0.0

    def paired(self, setting: str) -> list[float]:
        """How much higher each seed ended than the baseline of the same seed."""
        return [loss - base for loss, base in zip(self.losses[setting], self.losses[self.baseline], strict=True)]

    def gap(self, setting: str) -> float:
        """How much higher `setting` ended than the baseline, mean over the seeds; NaN where a run diverged."""
        return statistics.fmean(self.paired(setting))

    def closed(self, setting: str, *, of: str) -> float:
        """The part of the gap of `of` that `setting` closes: 1 is all of it."""
        return 1 - self.gap(setting) / self.gap(of)

    def table(self) -> "pd.DataFrame":
        """A row a setting: mean loss, lowest and highest over the seeds, and the gap to the baseline."""
        import pandas as pd

        rows = [(statistics.fmean(v), min(v), max(v), self.gap(name)) for name, v in self.losses.items()]
        columns = ["mean loss", "lowest", "highest", f"gap to {self.baseline}"]
        return pd.DataFrame(rows, index=list(self.losses), columns=columns).round(4)

    def plot(self, title: str = "") -> "Figure":
        """A row a setting: a mark a seed, a line at the mean, and the baseline's range as a band."""
        from labkit import plots

        height = 0.55 * len(self.losses) + 1.4
        fig, ax = plots.figure(title, x="final loss (nats per token)", size=(8.0, height))
        base = self.losses[self.baseline]
        ax.axvspan(
            min(base), max(base), color=plots.COLORS["grey"], alpha=0.18, label=f"range of {self.baseline} over the seeds"
        )
        for row, (name, losses) in enumerate(self.losses.items()):
            color, marker, _ = plots.PRECISIONS.get(name, (plots.COLORS["black"], "o", "-"))
            finite = [loss for loss in losses if math.isfinite(loss)]
            if len(finite) < len(losses):
                ax.annotate("diverged", (0.5, row), xycoords=("axes fraction", "data"), va="center", color=color, weight="bold")
            if finite:
                ax.plot(finite, [row] * len(finite), marker, color=color, markersize=8, linestyle="none")
                mean = statistics.fmean(finite)
                ax.plot([mean, mean], [row - 0.3, row + 0.3], color=color, linewidth=2)
        ax.set_yticks(range(len(self.losses)), list(self.losses))
        ax.set_ylim(len(self.losses) - 0.4, -0.9)
        ax.legend(loc="upper right")
        return fig


def loss_gaps(losses: Mapping[str, Sequence[float]], *, baseline: str = "32-true") -> LossGaps:
    """Compare the final `losses` of settings over the same seeds with those of `baseline`.

    Example::

        gaps = loss_gaps({"32-true": [2.41, 2.43], "bf16-true": [2.55, 2.52]})
        print(gaps.gap("bf16-true"), "nats above fp32; seeds differ by", gaps.spread)
        gaps.plot("bf16 weights end higher")

    Raises ValueError when the baseline is missing or the settings have different numbers of seeds.
    """
    if baseline not in losses:
        raise ValueError(f"the baseline {baseline!r} is not among the settings: {', '.join(losses)}")
    counts = {name: len(values) for name, values in losses.items()}
    if len(set(counts.values())) > 1 or not counts[baseline]:
        raise ValueError(f"every setting needs the same seeds, at least one, not {counts}")
    return LossGaps(losses, baseline)
