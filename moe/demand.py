"""How many rows each expert gets, how that changes, and how evenly ranks share them.

Legend as in placement.py.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.moe.placement import EMPTY, FloatArray, Placement


@dataclass(frozen=True, slots=True)
class Balance:
    """Two measures of balance in use elsewhere; 1 when all ranks of every layer get the same."""

    mean_of_layers: float
    """The mean over layers of ranks' mean demand by their largest: SGLang's balancedness."""
    ratio_of_sums: float
    """The sum of layers' means by that of their maxima, as in vLLM: layers weigh by their rows."""


def rank_demand(placement: Placement, demand_LE: NDArray[Any]) -> FloatArray:
    """The demand on each rank, [L, R], if replicas of an expert share theirs evenly."""
    share_LE = demand_LE / placement.num_replicas_LE
    return np.einsum("lre,le->lr", placement.physical_LRE != EMPTY, share_LE)


def balance(demand_LR: FloatArray) -> Balance:
    """The balance of the demand on ranks; layers without any count as even."""
    mean_L, max_L = demand_LR.mean(axis=1), demand_LR.max(axis=1)
    ratio_L = np.divide(mean_L, max_L, out=np.ones_like(mean_L), where=max_L > 0)
    total = max_L.sum()
    return Balance(float(ratio_L.mean()), float(mean_L.sum() / total) if total > 0 else 1.0)


@dataclass(slots=True)
class _Window:
    """The reports of one window of steps."""

    counts_LE: FloatArray
    ranks: set[int] = field(default_factory=set)


class DemandAverage:
    """Owns: rows per expert, summed over ranks in windows of steps and averaged over windows.

    The average forgets half of a window in `half_life_windows`.
    """

    def __init__(
        self, num_layers: int, num_experts: int, num_ranks: int, *, half_life_windows: float
    ) -> None:
        self._num_ranks = num_ranks
        self._keep = 0.5 ** (1 / half_life_windows)
        self._sum_LE = np.zeros((num_layers, num_experts))
        self._steps_sum = 0.0
        self._window_LE = np.zeros((num_layers, num_experts))
        self._open: dict[int, _Window] = {}
        """The windows of which some rank has not reported yet, by their last step."""

    def add(self, rank: int, step: int, counts_LE: NDArray[Any], *, num_steps: int) -> bool:
        """What `rank` has counted in the `num_steps` up to `step`; True if this ends a window.

        Ranks report at the same steps, and some are windows ahead of others while several steps are
        in flight. A window that a rank leaves out is dropped when a later one ends.
        """
        window = self._open.setdefault(step, _Window(np.zeros_like(self._window_LE)))
        window.counts_LE += counts_LE
        window.ranks.add(rank)
        if len(window.ranks) < self._num_ranks:
            return False

        self._open = {last: other for last, other in self._open.items() if last > step}
        self._window_LE = window.counts_LE
        self._sum_LE = self._keep * self._sum_LE + self._window_LE
        self._steps_sum = self._keep * self._steps_sum + num_steps
        return True

    @property
    def window_LE(self) -> FloatArray:
        """Rows of the window that ended last, if `add` has just said so."""
        return self._window_LE

    @property
    def rows_LE(self) -> FloatArray:
        """The average as a sum of rows: recent windows whole, older ones in part."""
        return self._sum_LE

    @property
    def rows_per_step_LE(self) -> FloatArray:
        """Rows of one step, from all ranks."""
        return self._sum_LE / max(self._steps_sum, 1.0)
