"""Layers that keep a state by the gated delta rule (arXiv:2412.06464), in plain PyTorch.

A state S of a value head maps keys to values. Each token lets it decay by exp(g), takes from it
what it said of the token's key, adds part `beta` of what the value differs by, and asks it with the
query:

    S = exp(g) S;  u = beta (v - S^T k);  S = S + k u^T;  out = S^T q

Chunks of tokens are computed at once. They end at multiples of `CHUNK_TOKENS` from the first token
of the sequence on, so that a state is the same wherever steps cut the sequence along that grid.

Legend: T tokens of the step, X channels, V value heads, H key heads, D key dim, E value dim, C
tokens of a chunk, K taps, P pages, L layers of the KV group, Z numbers of a head's state, R rows, N
pages of a block table.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.reference.paged_attention import rows_of_columns
from raydix.kernels.state.delta_form import CHUNK_TOKENS, NORM_EPS, DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs

_SOLVING = threading.Lock()
"""Torch loads its solvers for a device at their first use, and fails if two threads do at once."""


def gated_delta(
    inputs: DeltaInputs,
    pool_PLHZ: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: Sequence[DecodeRows],
    form: DeltaForm,
    *,
    page_size: int,
) -> Tensor:
    """What the rows' tokens get from their states, [T, V, E] in the dtype of the channels.

    A row goes on from the state in the page of the token before its first, and leaves one in each
    of its pages: after the page's last token, or its own. The first token of a sequence starts from
    zeros. Pages that the table does not name get none. Tokens of no row get zeros, unless all rows
    have one token. Waits for the device.
    """
    channels_TX = inputs.channels_TX
    out_TVE = channels_TX.new_zeros(len(channels_TX), form.num_value_heads, form.value_dim)
    for row in (each for some in rows for each in rows_of_columns(some)):
        tokens = slice(row.first_token, row.first_token + row.num_tokens)
        start = row.context_tokens - row.num_tokens
        table_N = block_tables_RN[row.row]
        matrices_VDE, past_KX = _read(pool_PLHZ, layer, table_N, start, form, page_size)

        raw_TX = torch.cat((past_KX.to(channels_TX.dtype), channels_TX[tokens]))
        mixed_TX = functional.silu(_convolve(raw_TX, inputs.taps_XK))
        for begin, end in _pieces(start, row.context_tokens, page_size):
            here = slice(begin - start, end - start)
            own = slice(tokens.start + here.start, tokens.start + here.stop)
            q_VTD, k_VTD, v_VTE = _heads(mixed_TX[here], form)
            g_VT, beta_VT = inputs.decays_TV[own].T, inputs.betas_TV[own].T
            out_VTE, matrices_VDE = delta_chunk(q_VTD, k_VTD, v_VTE, g_VT, beta_VT, matrices_VDE)
            out_TVE[own] = out_VTE.transpose(0, 1).to(out_TVE.dtype)

            is_border = end % page_size == 0 or end == row.context_tokens
            if is_border and (page := int(table_N[(end - 1) // page_size])):
                last_KX = raw_TX[here.stop : here.stop + form.num_taps - 1]
                pool_PLHZ[page, layer] = _packed(matrices_VDE, last_KX, form)
    return out_TVE


def delta_chunk(
    q_VTD: Tensor,
    k_VTD: Tensor,
    v_VTE: Tensor,
    g_VT: Tensor,
    beta_VT: Tensor,
    matrices_VDE: Tensor,
) -> tuple[Tensor, Tensor]:
    """Several tokens at once, all float32: what they get, [V, T, E], and the state after them."""
    sums_VT = g_VT.cumsum(-1)
    is_seen_TT = torch.ones(sums_VT.shape[-1], sums_VT.shape[-1]).tril().bool().to(q_VTD.device)
    gaps_VTT = (sums_VT[:, :, None] - sums_VT[:, None, :]).masked_fill(~is_seen_TT, -torch.inf)
    decays_VTT = gaps_VTT.exp()
    before_VT1 = sums_VT.exp()[..., None]

    # What each token adds to the state depends on what those before it have added.
    weighted_VTD = k_VTD * beta_VT[..., None]
    among_VTT = (weighted_VTD @ k_VTD.transpose(1, 2) * decays_VTT).tril(-1)
    right_VTX = torch.cat((v_VTE * beta_VT[..., None], weighted_VTD * before_VT1), dim=-1)
    solved_VTX = _solve(among_VTT, right_VTX)
    values_VTE, keys_VTD = solved_VTX.split((v_VTE.shape[-1], k_VTD.shape[-1]), dim=-1)
    added_VTE = values_VTE - keys_VTD @ matrices_VDE

    scores_VTT = q_VTD @ k_VTD.transpose(1, 2) * decays_VTT
    out_VTE = (q_VTD * before_VT1) @ matrices_VDE + scores_VTT @ added_VTE
    after_VT1 = (sums_VT[:, -1:] - sums_VT).exp()[..., None]
    kept_VDE = sums_VT[:, -1].exp()[:, None, None] * matrices_VDE
    return out_VTE, kept_VDE + (k_VTD * after_VT1).transpose(1, 2) @ added_VTE


def _solve(among_VTT: Tensor, right_VTX: Tensor) -> Tensor:
    with _SOLVING if among_VTT.is_cuda else nullcontext():
        return torch.linalg.solve_triangular(among_VTT, right_VTX, upper=False, unitriangular=True)


def _pieces(start: int, end: int, page_size: int) -> Iterator[tuple[int, int]]:
    """Runs of positions that end where a chunk or a page does."""
    while start < end:
        stop = min(end, start - start % CHUNK_TOKENS + CHUNK_TOKENS)
        stop = min(stop, start - start % page_size + page_size)
        yield start, stop
        start = stop


def _convolve(raw_TX: Tensor, taps_XK: Tensor) -> Tensor:
    """The causal convolution of each channel; `raw_TX` has the K - 1 inputs before, too."""
    out_XT = functional.conv1d(raw_TX.T[None], taps_XK[:, None], groups=len(taps_XK))[0]
    return out_XT.T


def _heads(mixed_TX: Tensor, form: DeltaForm) -> tuple[Tensor, Tensor, Tensor]:
    """Normed queries and keys of each value head, [V, T, D], and its values [V, T, E], float32."""
    keys = form.num_key_heads * form.key_dim
    values = form.num_value_heads * form.value_dim
    q_TX, k_TX, v_TX = mixed_TX.float().split((keys, keys, values), dim=-1)
    q_VTD, k_VTD = (
        _normed(each_TX.unflatten(-1, (form.num_key_heads, form.key_dim)))
        .transpose(0, 1)
        .repeat_interleave(form.values_per_key, dim=0)
        for each_TX in (q_TX, k_TX)
    )
    v_VTE = v_TX.unflatten(-1, (form.num_value_heads, form.value_dim)).transpose(0, 1)
    return q_VTD * form.key_dim**-0.5, k_VTD, v_VTE


def _normed(x_THD: Tensor) -> Tensor:
    return x_THD * torch.rsqrt(x_THD.square().sum(-1, keepdim=True) + NORM_EPS)


def _read(
    pool_PLHZ: Tensor, layer: int, table_N: Tensor, start: int, form: DeltaForm, page_size: int
) -> tuple[Tensor, Tensor]:
    """The states before position `start`, and the last inputs of the convolution."""
    if start:
        state_HZ = pool_PLHZ[int(table_N[(start - 1) // page_size]), layer]
    else:
        state_HZ = pool_PLHZ.new_zeros(pool_PLHZ.shape[2:])
    sizes = (form.matrix_elements, form.head_elements - form.matrix_elements)
    matrices_HX, past_HX = state_HZ.split(sizes, dim=-1)
    matrices_VDE = matrices_HX.reshape(form.num_value_heads, form.key_dim, form.value_dim)
    return matrices_VDE, _join_heads(past_HX.unflatten(-1, (form.num_taps - 1, -1)), form)


def _packed(matrices_VDE: Tensor, past_KX: Tensor, form: DeltaForm) -> Tensor:
    """The state of each key head as it is cached, [H, Z]."""
    matrices_HX = matrices_VDE.reshape(form.num_key_heads, form.matrix_elements)
    return torch.cat((matrices_HX, _split_heads(past_KX.float(), form).flatten(1)), dim=-1)


def _split_heads(past_KX: Tensor, form: DeltaForm) -> Tensor:
    """Channels by key head, [H, K, channels of a head]: what ranks divide lies together."""
    heads, keys = form.num_key_heads, form.num_key_heads * form.key_dim
    parts = past_KX.split((keys, keys, past_KX.shape[-1] - 2 * keys), dim=-1)
    return torch.cat([part.unflatten(-1, (heads, -1)) for part in parts], dim=-1).transpose(0, 1)


def _join_heads(past_HKX: Tensor, form: DeltaForm) -> Tensor:
    """The inverse of `_split_heads`."""
    sizes = (form.key_dim, form.key_dim, form.values_per_key * form.value_dim)
    parts = past_HKX.transpose(0, 1).split(sizes, dim=-1)
    return torch.cat([part.flatten(1) for part in parts], dim=-1)
