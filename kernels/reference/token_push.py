"""Plain PyTorch twins of the kernels that exchange tokens between ranks: what arrives where.

Nothing is counted, and nobody is waited for: who calls them has all ranks push before one reads.

Legend: as in `token_buffers`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raydix.kernels.dispatch.token_buffers import TokenBuffers, TokenLayout


def push_tokens(
    x_TC: Tensor,
    weights_TK: Tensor,
    ids_TK: Tensor,
    buffers_R: Sequence[TokenBuffers],
    layout: TokenLayout,
    first_row: int,
) -> None:
    """Copy this rank's tokens to rows `first_row`.. of all ranks that want them."""
    rows = slice(first_row, first_row + x_TC.shape[0])
    tokens_T = torch.arange(x_TC.shape[0], dtype=torch.int32, device=x_TC.device)
    for peer, buffers in enumerate(buffers_R):
        is_here_TK = _is_on(peer, ids_TK, layout)
        is_wanted_T = is_here_TK.any(1)
        seats_TK = ids_TK - peer * layout.seats_per_rank
        buffers.ids_NK[rows] = seats_TK.where(is_here_TK, -1).to(torch.int32)
        buffers.weights_NK[rows] = weights_TK
        buffers.x_NC[rows][is_wanted_T] = x_TC[is_wanted_T]

        origins_T = layout.rank * layout.max_tokens + tokens_T
        goes_back_T = is_wanted_T & (peer != layout.rank)
        buffers.origins_N[rows] = origins_T.where(goes_back_T, -1)


def push_outputs(out_NC: Tensor, buffers_R: Sequence[TokenBuffers], layout: TokenLayout) -> None:
    """Copy outputs to the ranks whose tokens they belong to."""
    origins_N = buffers_R[layout.rank].origins_N[: out_NC.shape[0]]
    for row, origin in enumerate(origins_N.tolist()):
        if origin >= 0:
            source, token = divmod(origin, layout.max_tokens)
            place = layout.place(layout.rank, source)
            buffers_R[source].returned_XC[place * layout.max_tokens + token] = out_NC[row]


def sum_outputs(
    out_NC: Tensor, ids_TK: Tensor, buffers: TokenBuffers, layout: TokenLayout, first_row: int
) -> Tensor:
    """The sum of all ranks' outputs in the order of ranks, in float32, rounded once: [T, C]."""
    num_tokens = ids_TK.shape[0]
    summed_TC = torch.zeros(num_tokens, out_NC.shape[1], device=out_NC.device)
    for peer in range(layout.num_ranks):
        if peer == layout.rank:
            part_TC = out_NC[first_row : first_row + num_tokens]
        else:
            first = layout.place(peer, layout.rank) * layout.max_tokens
            part_TC = buffers.returned_XC[first : first + num_tokens]
        is_wanted_T1 = _is_on(peer, ids_TK, layout).any(1, keepdim=True)
        summed_TC += part_TC.float().where(is_wanted_T1, 0.0)
    return summed_TC.to(out_NC.dtype)


def _is_on(rank: int, ids_TK: Tensor, layout: TokenLayout) -> Tensor:
    first = rank * layout.seats_per_rank
    return (ids_TK >= first) & (ids_TK < first + layout.seats_per_rank)
