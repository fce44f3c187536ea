"""A fake library of the contract that came of DeepEP's low-latency kernels.

It refuses what the real ones refuse, leaves NaN in places that hold no row, and lands rows in an
order that nobody should count on.
"""

from typing import Any

import torch
from torch import Tensor

from raydix.moe.dispatch.protocol import DispatchShape
from raydix.plugins.dispatch.expert_major import Landed
from tests.moe.board import Board


class FakeExpertMajorBuffer:
    """An `ExpertMajorBuffer` of a rank that is a thread."""

    def __init__(
        self, name: str, board: Board, rank: int, shape: DispatchShape, max_tokens: int
    ) -> None:
        self._name = name
        self._board = board
        self._rank = rank
        self._shape = shape
        self._num_open = 0
        self.max_tokens = max_tokens

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        """Send rows to their experts, as the libraries do."""
        shape = self._shape
        assert x_TC.is_contiguous()
        assert ids_TK.is_contiguous()
        assert ids_TK.dtype == torch.int64
        assert x_TC.shape == (ids_TK.shape[0], shape.hidden_size)
        assert ids_TK.shape[0] <= self.max_tokens

        seats, places = shape.seats_per_rank, shape.num_ranks * self.max_tokens
        x_SPC = torch.full((seats, places, shape.hidden_size), torch.nan, dtype=shape.dtype)
        origins: list[list[tuple[int, int]]] = [[] for _ in range(seats)]
        sent = self._board.post(f"{self._name} dispatch", self._rank, (x_TC, ids_TK))
        for source in reversed(range(shape.num_ranks)):
            x_UC, ids_UK = sent[source]
            for token, expert in zip(*_pairs(ids_UK), strict=True):
                if expert // seats != self._rank:
                    continue
                rows = origins[expert % seats]
                x_SPC[expert % seats, len(rows)] = x_UC[token]
                rows.append((source, token))
        counts_S = torch.tensor([len(rows) for rows in origins], dtype=torch.int32)
        return Landed(x_SPC, counts_S, origins)

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        """Bring the experts' outputs back, as the libraries do."""
        shape = self._shape
        places = shape.num_ranks * self.max_tokens
        assert out_SPC.is_contiguous()
        assert out_SPC.shape == (shape.seats_per_rank, places, shape.hidden_size)
        assert out_SPC.dtype == shape.dtype
        assert weights_TK.is_contiguous()
        assert weights_TK.dtype == torch.float32
        assert weights_TK.shape == ids_TK.shape

        parts = self._board.post(f"{self._name} combine", self._rank, (out_SPC, handle))
        sums_TC = torch.zeros(ids_TK.shape[0], shape.hidden_size)
        for rank, (out, origins) in enumerate(parts):
            for seat, rows in enumerate(origins):
                for place, (source, token) in enumerate(rows):
                    if source != self._rank:
                        continue
                    is_expert_K = ids_TK[token] == rank * shape.seats_per_rank + seat
                    weight = weights_TK[token][is_expert_K].sum()
                    sums_TC[token] += weight * out[seat, place].float()
        return sums_TC.to(shape.dtype)


def _pairs(ids_TK: Tensor) -> tuple[list[int], list[int]]:
    """Tokens and their experts."""
    tokens, choices = (ids_TK >= 0).nonzero(as_tuple=True)
    return tokens.tolist(), ids_TK[tokens, choices].tolist()
