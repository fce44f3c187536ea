"""What a layer's experts cost a rank: reading weights, computing rows and receiving them.

Legend as in placement.py; C costs that add up over a rank's experts, of which the largest counts; N
the number of an expert's replicas, 0 to R.
"""

from dataclasses import dataclass

import numpy as np

from raydix.moe.placement import EMPTY, FloatArray, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTime:
    """The time that experts take, of one model on one kind of GPU.

    A rank reads its hit experts while it computes, so the slower of the two counts; what it
    receives comes on top.
    """

    expert_bytes: int
    memory_bytes_per_s: float
    row_flops: float
    flops_per_s: float
    row_bytes: int
    """The bytes that one row moves, to its expert and back."""
    link_bytes_per_s: float

    def replica_seconds(self, rows_LE: FloatArray, num_ranks: int) -> FloatArray:
        """What one replica adds to its rank in a step of `rows_LE` rows, [C, L, E, N].

        C: with its weights, with its rows' arithmetic, received rows in both. Rows come equally
        from all ranks, and to no expert more often than chance: x of them hit it with 1 - exp(-x).
        """
        num_replicas_N = np.maximum(np.arange(num_ranks + 1), 1)
        rows_LEN = rows_LE[:, :, None] / num_replicas_N
        # A replica serves its own rank's rows, which do not travel, and its part of the others'.
        remote_LEN = rows_LEN * (num_ranks - num_replicas_N) / num_ranks

        weights_s = -np.expm1(-rows_LEN) * (self.expert_bytes / self.memory_bytes_per_s)
        flops_s = rows_LEN * (self.row_flops / self.flops_per_s)
        received_s = remote_LEN * (self.row_bytes / self.link_bytes_per_s)
        return np.stack([weights_s + received_s, flops_s + received_s])


def replica_rows(rows_LE: FloatArray, num_ranks: int) -> FloatArray:
    """Rows as the only cost, [C, L, E, N]: replicas share them evenly."""
    num_replicas_N = np.maximum(np.arange(num_ranks + 1), 1)
    return (rows_LE[:, :, None] / num_replicas_N)[None]


def rank_costs(placement: Placement, costs_CLEN: FloatArray) -> FloatArray:
    """The cost of each rank's experts to it, [L, R]."""
    num_replicas_LE = placement.num_replicas_LE
    costs_CLE = np.take_along_axis(costs_CLEN, num_replicas_LE[None, :, :, None], axis=3)[..., 0]
    is_held_LRE = placement.physical_LRE != EMPTY
    return np.einsum("lre,cle->clr", is_held_LRE, costs_CLE, optimize=True).max(axis=0)


def imbalance(costs_LR: FloatArray) -> float:
    """How many times as long layers take as if every rank took the mean; 1 without any cost."""
    mean = costs_LR.mean(axis=1).sum()
    return float(costs_LR.max(axis=1).sum() / mean) if mean > 0 else 1.0
