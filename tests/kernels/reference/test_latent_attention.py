import math

import pytest
import torch

from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow, cut_rows
from raydix.kernels.reference import latent_attention as reference
from raydix.kernels.reference import paged_attention

PAGE, HEADS, DIM, VALUE_DIM, LAYERS = 4, 3, 10, 6, 2
SCALE = 0.4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def naive_attention(q: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """Attend one query and head at a time: q [T, Q, D] are the last T of the tokens of [S, D]."""
    out = torch.empty(*q.shape[:2], VALUE_DIM)
    for t in range(q.shape[0]):
        visible = latent[: latent.shape[0] - q.shape[0] + t + 1]
        for head in range(q.shape[1]):
            weights = [math.exp(SCALE * float(key @ q[t, head])) for key in visible]
            total = sum(weights)
            out[t, head] = sum(
                weight / total * key[:VALUE_DIM]
                for weight, key in zip(weights, visible, strict=True)
            )
    return out


def make_rows(num_tokens: tuple[int, ...], contexts: tuple[int, ...]) -> AttentionRows:
    firsts = [sum(num_tokens[:row]) for row in range(len(num_tokens))]
    singles = [row for row, count in enumerate(num_tokens) if count == 1]
    prefill = tuple(
        PrefillRow(row=row, first_token=firsts[row], num_tokens=count, context_tokens=contexts[row])
        for row, count in enumerate(num_tokens)
        if count > 1
    )
    decode = DecodeRows(
        rows_B=torch.tensor(singles, dtype=torch.int64),
        tokens_B=torch.tensor([firsts[row] for row in singles], dtype=torch.int64),
        context_tokens_B=torch.tensor([contexts[row] for row in singles], dtype=torch.int64),
        max_context_tokens=max((contexts[row] for row in singles), default=0),
    )
    tiles_X4 = torch.from_numpy(cut_rows(prefill, 2**30))
    return AttentionRows(decode=(decode,) if singles else (), tiles_X4=tiles_X4)


def attend(
    q: torch.Tensor, pool: torch.Tensor, tables: torch.Tensor, rows: AttentionRows
) -> torch.Tensor:
    return reference.latent_attention(q, pool, 1, tables, rows, scale=SCALE, value_dim=VALUE_DIM)


@pytest.mark.parametrize("num_tokens", [(5, 1, 1, 9), (1, 1, 1, 1), (7, 2, 3, 2)])
@pytest.mark.parametrize("query_block", [2, 256])
def test_latent_attention_matches_the_definition(
    num_tokens: tuple[int, ...], query_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "QUERY_BLOCK", query_block)
    monkeypatch.setattr(paged_attention, "NARROWEST_BAND_TOKENS", query_block)
    contexts = (11, 4, 17, 9)
    # Whatever the last owner of a page left there counts for nothing.
    pool = torch.full((40, LAYERS, PAGE, DIM), torch.nan)
    tables = (torch.randperm(39)[: 4 * 6] + 1).view(4, 6).int()
    latents = [torch.randn(context, DIM) for context in contexts]
    for row, context in enumerate(contexts):
        positions = torch.arange(context)
        cells = tables[row, positions // PAGE].long() * PAGE + positions % PAGE
        reference.write_latent(latents[row], pool, 1, cells)
    q = torch.randn(sum(num_tokens), HEADS, DIM)

    out = attend(q, pool, tables, make_rows(num_tokens, contexts))

    expected = [naive_attention(part, latents[row]) for row, part in enumerate(q.split(num_tokens))]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_tiles_attend_as_the_rows_they_are_cut_from() -> None:
    pool = torch.randn(40, LAYERS, PAGE, DIM)
    tables = (torch.randperm(39)[: 4 * 6] + 1).view(4, 6).int()
    q = torch.randn(16, HEADS, DIM)
    tiles = DecodeRows(
        rows_B=torch.tensor([2, 2, 0, 1]),
        tokens_B=torch.tensor([9, 13, 0, 0]),
        context_tokens_B=torch.tensor([14, 17, 9, 0]),
        max_context_tokens=17,
        num_tokens_B=torch.tensor([4, 3, 9, 0]),
        tokens_per_tile=9,
    )

    out = attend(q, pool, tables, AttentionRows(decode=(tiles,)))

    expected = attend(q, pool, tables, make_rows((9, 0, 7), (9, 0, 17)))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_a_write_touches_its_cells_and_the_padding_page_alone() -> None:
    pool = torch.zeros(5, LAYERS, PAGE, DIM)
    latent = torch.randn(3, DIM)

    reference.write_latent(latent, pool, 1, torch.tensor([2 * PAGE + 3, -1, 4 * PAGE]))

    assert torch.equal(pool[2, 1, 3], latent[0])
    assert torch.equal(pool[4, 1, 0], latent[2])
    pool[2, 1, 3] = pool[4, 1, 0] = pool[0] = 0.0
    assert not pool.any()
