# mypy: disable-error-code="no-untyped-def"
"""Tokens and outputs of experts, written into the memory of other ranks over NVLink.

Rows have fixed places, so that nobody asks anybody: all ranks know how many tokens each one sends.
A rank pushes its tokens (one copy per rank that has any of their experts), waits for those of the
others (`arrivals`), pushes outputs back, and sums what comes back (`output_sum`). Pushes never
wait. Each rank begins with what goes to the rank after it, lest all write to the same one at a
time.

A receiver's rows may be written again once it has read them. It has if its outputs have come back,
and these have before the sender's next tokens leave on the same buffers, since a sender sums first.
In the same way returned outputs have been summed when the next tokens arrive, to which the next
outputs are the answer.

Legend: as in `token_buffers`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dispatch.arrivals import WHOLE_PUSH, signal
from raydix.kernels.dispatch.token_buffers import TokenBuffers, TokenLayout
from raydix.kernels.dispatch.token_inputs import check_rows, check_tokens

_MIN_PROGRAMS = 32
"""The least programs of a push, a power of two like `WHOLE_PUSH`. On two H200, 128 programs of 8
warps took 0.91 of the time of 32 of 32 for 8,192 rows of 14 KB, and 1.08 for 16 (2026-11-26).
"""
_ROWS_PER_PROGRAM = 2
_WORD_BYTES = 8
_PUSH_WARPS = 8
_MAX_BLOCK_ROWS = 4
_MAX_TILE_WORDS = 2048
"""The most words (int64) of a tile, which a program holds in registers."""


def push_tokens(
    x_TC: Tensor,
    weights_TK: Tensor,
    ids_TK: Tensor,
    buffers_R: Sequence[TokenBuffers],
    layout: TokenLayout,
    first_row: int,
) -> None:
    """Enqueue the copy of this rank's tokens to rows `first_row`.. of all ranks that want them.

    `weights_TK`: float32; `ids_TK`: int32 or int64, physical experts or -1. Every rank gets the
    ids and weights of every row. Raises ValueError if a shape, dtype or stride differs.
    """
    check_tokens(x_TC, weights_TK, ids_TK, buffers_R[layout.rank], layout, first_row)
    row_words = x_TC.shape[1] * x_TC.element_size() // _WORD_BYTES
    num_programs = _num_programs(x_TC.shape[0])
    others_first = [*buffers_R[layout.rank + 1 :], *buffers_R[: layout.rank + 1]]
    _push_tokens[(num_programs,)](
        _words(x_TC),
        weights_TK,
        ids_TK,
        tuple(_words(each.x_NC) for each in others_first),
        tuple(each.weights_NK for each in others_first),
        tuple(each.ids_NK for each in others_first),
        tuple(each.origins_N for each in others_first),
        tuple(each.tokens_arrived_R for each in others_first),
        x_TC.shape[0],
        first_row,
        layout.max_tokens,
        layout.seats_per_rank,
        WHOLE=WHOLE_PUSH,
        RANK=layout.rank,
        NUM_RANKS=layout.num_ranks,
        CHOICES=ids_TK.shape[1],
        BLOCK_CHOICES=triton.next_power_of_2(ids_TK.shape[1]),
        ROW_WORDS=row_words,
        **_tile(x_TC.shape[0], row_words, num_programs),
        num_warps=_PUSH_WARPS,
    )


def push_outputs(
    out_NC: Tensor, buffers_R: Sequence[TokenBuffers], layout: TokenLayout, next_row: int
) -> None:
    """Enqueue the copy of outputs to the ranks whose tokens they belong to.

    Its rows are those of this rank's `x_NC`; `next_row`: the first one after its own tokens. Raises
    ValueError if a shape, dtype or stride differs.
    """
    own = buffers_R[layout.rank]
    check_rows("Outputs", out_NC, own.returned_XC)
    row_words = out_NC.shape[1] * out_NC.element_size() // _WORD_BYTES
    num_programs = _num_programs(out_NC.shape[0])
    _push_outputs[(num_programs,)](
        _words(out_NC),
        own.origins_N,
        tuple(_words(each.returned_XC) for each in buffers_R),
        tuple(each.outputs_arrived_R for each in buffers_R),
        out_NC.shape[0],
        next_row,
        layout.max_tokens,
        WHOLE=WHOLE_PUSH,
        RANK=layout.rank,
        NUM_RANKS=layout.num_ranks,
        ROW_WORDS=row_words,
        **_tile(out_NC.shape[0], row_words, num_programs),
        num_warps=_PUSH_WARPS,
    )


def _words(rows: Tensor) -> Tensor:
    return rows.view(-1).view(torch.int64)


def _num_programs(num_rows: int) -> int:
    """The number of programs of a push: few for few rows, as each counts itself at every rank."""
    wanted = triton.next_power_of_2(triton.cdiv(num_rows, _ROWS_PER_PROGRAM))
    return min(max(wanted, _MIN_PROGRAMS), WHOLE_PUSH)


def _tile(num_rows: int, row_words: int, num_programs: int) -> dict[str, int]:
    """The rows that a program has in registers at a time: many loads hide how long each takes."""
    block_words = triton.next_power_of_2(row_words)
    most = max(min(_MAX_TILE_WORDS // block_words, _MAX_BLOCK_ROWS), 1)
    fair = triton.next_power_of_2(triton.cdiv(max(num_rows, 1), num_programs))
    return {"BLOCK_ROWS": min(most, fair), "BLOCK_WORDS": block_words}


@triton.jit(do_not_specialize=["num_tokens", "first_row", "max_tokens", "seats"])
def _push_tokens(
    x_ptr,
    weights_ptr,
    ids_ptr,
    peer_x,
    peer_weights,
    peer_ids,
    peer_origins,
    peer_arrived,
    num_tokens,
    first_row,
    max_tokens,
    seats,
    WHOLE: tl.constexpr,
    RANK: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_CHOICES: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """A fixed grid walks blocks of tokens; each is read once and written to whoever wants it.

    Peers are in the order of ranks from the one after this one on.
    """
    word = tl.arange(0, BLOCK_WORDS)[None, :]
    choice = tl.arange(0, BLOCK_CHOICES)[None, :]
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in range(tl.program_id(0) * BLOCK_ROWS, num_tokens, step):
        token = first + tl.arange(0, BLOCK_ROWS)
        exists = token < num_tokens
        is_word = exists[:, None] & (word < ROW_WORDS)
        is_choice = exists[:, None] & (choice < CHOICES)
        source = token.to(tl.int64)[:, None]
        row = (first_row + token).to(tl.int64)
        x = tl.load(x_ptr + source * ROW_WORDS + word, mask=is_word, cache_modifier=".cg")
        ids = tl.load(ids_ptr + source * CHOICES + choice, mask=is_choice, other=-1).to(tl.int32)
        weights = tl.load(weights_ptr + source * CHOICES + choice, mask=is_choice, other=0.0)

        for away in tl.static_range(NUM_RANKS):
            peer = (RANK + 1 + away) % NUM_RANKS
            seat = ids - peer * seats
            is_here = (seat >= 0) & (seat < seats)
            is_wanted = tl.max(is_here.to(tl.int32), 1) > 0
            target = row[:, None] * CHOICES + choice
            tl.store(peer_ids[away] + target, tl.where(is_here, seat, -1), mask=is_choice)
            tl.store(peer_weights[away] + target, weights, mask=is_choice)
            origin = tl.where(is_wanted & (peer != RANK), RANK * max_tokens + token, -1)
            tl.store(peer_origins[away] + row, origin, mask=exists)
            tl.store(
                peer_x[away] + row[:, None] * ROW_WORDS + word,
                x,
                mask=is_word & is_wanted[:, None],
            )
    signal(peer_arrived, WHOLE, RANK, NUM_RANKS)


@triton.jit(do_not_specialize=["num_rows", "next_row", "max_tokens"])
def _push_outputs(
    out_ptr,
    origins_ptr,
    peer_returned,
    peer_arrived,
    num_rows,
    next_row,
    max_tokens,
    WHOLE: tl.constexpr,
    RANK: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """A fixed grid walks blocks of rows, and skips what stays here."""
    word = tl.arange(0, BLOCK_WORDS)[None, :]
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in range(tl.program_id(0) * BLOCK_ROWS, num_rows, step):
        turn = first + tl.arange(0, BLOCK_ROWS)
        row = next_row + turn
        row = tl.where(row < num_rows, row, row - num_rows)
        origin = tl.load(origins_ptr + row, mask=turn < num_rows, other=-1)
        is_word = (origin >= 0)[:, None] & (word < ROW_WORDS)
        source = row.to(tl.int64)[:, None] * ROW_WORDS + word
        out = tl.load(out_ptr + source, mask=is_word, cache_modifier=".cg")

        for peer in tl.static_range(NUM_RANKS):
            if peer != RANK:
                token = origin - peer * max_tokens
                is_peers = (token >= 0) & (token < max_tokens)
                place = RANK - 1 if peer < RANK else RANK
                target = (place * max_tokens + token).to(tl.int64)[:, None] * ROW_WORDS + word
                tl.store(peer_returned[peer] + target, out, mask=is_word & is_peers[:, None])
    signal(peer_arrived, WHOLE, RANK, NUM_RANKS)
