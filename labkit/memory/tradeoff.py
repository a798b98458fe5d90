"""The whole trade-off on one chain: memory against recomputation, with the named policies beside the best placements."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labkit.memory.chain import Chain, Cost, cost
from labkit.memory.placement import Search, Solution, best_placement, named_placement
from labkit.memory.units import UNITS, best_unit, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Memory against recomputation on one chain: the best placements, and the named policies beside them."""

    chain: Chain
    #: The best placement for each of several budgets, by rising peak.
    best: tuple[Solution, ...]
    #: The named policies, and what each costs.
    named: dict[str, Cost]

    def table(self, unit: str | None = None) -> pd.DataFrame:
        """One row a named policy: its peak and extra time, and the least extra time at an equal peak."""
        unit = unit or best_unit((each.peak for each in self.named.values()), binary=False)
        rows = []
        for name, price in self.named.items():
            rival = best_placement(self.chain, price.peak).cost
            rows.append((name, price.peak / UNITS[unit], price.extra_ms, rival.extra_ms))
        columns = ["policy", f"peak ({unit})", "recomputation (ms)", "best placement at this peak (ms)"]
        return pd.DataFrame(rows, columns=columns).set_index("policy")

    def plot(self, title: str | None = None) -> "Figure":
        """The curve of the best placements, with the named policies as points on or above it."""
        from labkit import plots

        unit = best_unit((each.peak for each in self.named.values()), binary=False)
        fig, ax = plots.figure(
            title or "No named policy lies below the curve of best placements",
            x=f"peak of the step ({unit})",
            y="time of recomputation (ms)",
            size=(8.0, 4.6),
        )
        peaks = [each.cost.peak / UNITS[unit] for each in self.best]
        times = [each.cost.extra_ms for each in self.best]
        ax.step(peaks, times, where="post", color=plots.COLORS["blue"], label="best placement within a budget")
        ax.plot(peaks, times, ".", color=plots.COLORS["blue"], markersize=4)
        for (names, price), marker in zip(_by_cost(self.named).items(), "s^vDPX*o" * 4, strict=False):
            x, y = price.peak / UNITS[unit], price.extra_ms
            ax.plot(x, y, marker, color=plots.COLORS["vermilion"], markersize=8, label=names, linestyle="none")
        ax.set_ylim(bottom=-0.04 * max(times, default=1.0))
        ax.legend(loc="upper right")
        return fig

    @property
    def alt(self) -> str:
        """The figure in words."""
        points = "; ".join(
            f"{name} {format_bytes(c.peak, binary=False)} and {c.extra_ms:.1f} ms" for name, c in self.named.items()
        )
        return f"Falling staircase of recomputation time over peak memory, with the named policies at: {points}."


def _by_cost(named: dict[str, Cost]) -> dict[str, Cost]:
    """Policies that cost the same, under one joint label."""
    groups: dict[Cost, list[str]] = {}
    for name, price in named.items():
        groups.setdefault(price, []).append(name)
    return {", ".join(names): price for price, names in groups.items()}


def tradeoff(chain: Chain, *, points: int = 60) -> Tradeoff:
    """The best placements for `points` budgets from the least peak to that of keeping everything, and the named policies."""
    search = Search(chain)
    top, bottom = cost(chain, ()).peak, search.least_peak()
    found: dict[int, Solution] = {}
    for limit in np.linspace(bottom, top, points):
        placement = search.solve(int(limit))
        assert placement is not None  # the least peak fits, and so does whatever is larger
        price = cost(chain, placement)
        found[price.peak] = Solution(placement, price)
    named = {name: cost(chain, named_placement(name, len(chain))) for name in _policies(len(chain))}
    return Tradeoff(chain, tuple(found[peak] for peak in sorted(found)), named)


def _policies(total: int) -> list[str]:
    """`none`, `full`, `every:K` for each K that divides a chain differently, and `sqrt`."""
    sizes = [2**power for power in range(1, total.bit_length()) if 2**power <= total]
    return ["none", "full", *(f"every:{size}" for size in sizes), "sqrt"]
