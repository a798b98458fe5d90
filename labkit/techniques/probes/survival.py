"""Which weights a step moved: a low-precision weight stays where it is when its update is under half an ulp."""

from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class UpdateSurvival:
    """How many elements of each parameter changed their bits between entering and leaving the `with` block."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self._before: dict[str, Tensor] = {}
        #: Elements that moved, and all elements, by parameter name; filled when the block is left.
        self.moved: dict[str, int] = {}
        self.total: dict[str, int] = {name: p.numel() for name, p in self._parameters.items()}

    def __enter__(self) -> "UpdateSurvival":
        self._before = {name: p.detach().clone() for name, p in self._parameters.items()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, parameter in self._parameters.items():
            self.moved[name] = int(torch.count_nonzero(parameter.detach() != self._before[name]))
        self._before = {}

    @property
    def share(self) -> float:
        """The share of all elements that moved, from 0 to 1."""
        return sum(self.moved.values()) / max(sum(self.total.values()), 1)

    def table(self) -> "pd.DataFrame":
        """A row a parameter: elements, how many moved, and the share in percent."""
        import pandas as pd

        rows = [(self.total[name], moved, 100 * moved / max(self.total[name], 1)) for name, moved in self.moved.items()]
        return pd.DataFrame(rows, index=list(self.moved), columns=["elements", "moved", "moved (%)"])

    def plot(self) -> "Figure":
        """The share that moved of each parameter, as bars from the input of the model down to its output."""
        from labkit import plots

        names = list(self.moved)
        shares = [100 * self.moved[name] / max(self.total[name], 1) for name in names]
        height = max(2.5, 0.22 * len(names) + 1)
        title = f"{self.share:.1%} of the weights moved in this step"
        fig, ax = plots.figure(title, x="elements that moved (%)", size=(8.0, height))
        ax.barh(names, shares, color=plots.COLORS["blue"])
        ax.set_xlim(0, 100)
        ax.invert_yaxis()
        return fig


def update_survival(model: nn.Module) -> UpdateSurvival:
    """Watch which parameters of `model` move; it holds one copy of the parameters while it watches.

    Example::

        with update_survival(model) as survival:
            optimizer.step()
        print(f"{survival.share:.1%} of the weights moved")
        survival.plot()

    Raises ValueError for a model without parameters.
    """
    survival = UpdateSurvival(model)
    if not survival.total:
        raise ValueError("the model has no parameters to watch")
    return survival
