"""A token's attention is the same, bit for bit, in a prompt, in a chunk of it, and alone."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, cut_rows
from raydix.kernels.fixed_order.attention import fixed_decode, fixed_prefill
from raydix.kernels.fixed_order.triton_ops import FixedTritonOps
from tests.kernels.attention.paged_rows import FORMS, LAYER, PagedRows

CONTEXTS, NUM_TOKENS = (70, 5, 130, 600, 1), (70, 1, 37, 40, 1)
TILE_TOKENS = 24


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def by_prompts(rows: PagedRows, tile_tokens: int = TILE_TOKENS) -> None:
    """All rows in tiles of so many tokens."""
    tiles_X4 = torch.from_numpy(cut_rows(rows.rows, tile_tokens)).to(rows.q_TQD.device)
    fixed_prefill(
        rows.q_TQD,
        rows.pool_PLH2SD,
        LAYER,
        rows.tables_RN,
        tiles_X4,
        tokens_per_tile=tile_tokens,
        form=rows.form,
        out_TQD=rows.out_TQD,
    )


def by_decodes(rows: PagedRows, tokens_per_tile: int = 1) -> None:
    """All tokens in tiles of few, as if each tile were a decode of its own."""
    tiles = [
        (row.row, row.first_token + first, row.context_tokens - row.num_tokens + stop, stop - first)
        for row in rows.rows
        for first in range(0, row.num_tokens, tokens_per_tile)
        for stop in [min(first + tokens_per_tile, row.num_tokens)]
    ]
    columns = [rows.column(list(values)) for values in zip(*tiles, strict=True)]
    fixed_decode(
        rows.q_TQD,
        rows.pool_PLH2SD,
        LAYER,
        rows.tables_RN,
        DecodeTiles(
            rows_B=columns[0],
            tokens_B=columns[1],
            context_tokens_B=columns[2],
            num_tokens_B=None if tokens_per_tile == 1 else columns[3],
            tokens_per_tile=tokens_per_tile,
        ),
        max_context_tokens=max(row.context_tokens for row in rows.rows),
        form=rows.form,
        out_TQD=rows.out_TQD,
    )


@pytest.mark.parametrize("form", [{}, *FORMS.values()], ids=["plain", *FORMS])
@pytest.mark.parametrize("shape", [(2, 4, 64, 64), (1, 3, 80, 16)])
@pytest.mark.parametrize("ask", [by_prompts, by_decodes])
def test_queries_see_what_the_form_says(
    device: torch.device, shape: tuple[int, int, int, int], form: dict[str, Any], ask: Any
) -> None:
    rows = PagedRows(shape, CONTEXTS, NUM_TOKENS, dtype=torch.float32, device=device, **form)

    ask(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("form", [{}, *FORMS.values()], ids=["plain", *FORMS])
@pytest.mark.parametrize(
    "shape", [(2, 4, 128, 64), (1, 8, 64, 16), (2, 1, 80, 32), (1, 2, 256, 64)]
)
def test_the_bits_are_those_of_any_other_division(
    shape: tuple[int, int, int, int], form: dict[str, Any]
) -> None:
    contexts, num_tokens = (70, 5, 1300, 3000, 1), (70, 1, 700, 40, 1)
    rows = PagedRows(
        shape, contexts, num_tokens, dtype=torch.bfloat16, device=torch.device("cuda"), **form
    )
    by_prompts(rows, 128)
    rows.assert_out()
    expected = rows.out_TQD.clone()

    for divide in (
        lambda: by_prompts(rows, 1),
        lambda: by_prompts(rows, 17),
        lambda: by_decodes(rows),
        lambda: by_decodes(rows, 16),
    ):
        rows.out_TQD.fill_(torch.nan)
        divide()
        assert torch.equal(rows.out_TQD, expected)


@pytest.mark.gpu
def test_tiles_that_are_not_full_are_all_computed() -> None:
    rows = PagedRows(
        (2, 4, 128, 64),
        (700, 800, 900),
        (3, 3, 3),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )
    ops = FixedTritonOps(rows.q_TQD.device, torch.bfloat16, head_counts={(8, 2)})
    tiles = DecodeRows(
        rows_B=rows.column([0, 1, 2]),
        tokens_B=rows.column([0, 3, 6]),
        context_tokens_B=rows.column([700, 800, 900]),
        num_tokens_B=rows.column([3, 3, 3]),
        tokens_per_tile=8,
        max_context_tokens=1024,
    )

    rows.out_TQD = ops.paged_attention(
        rows.q_TQD,
        rows.pool_PLH2SD,
        LAYER,
        rows.tables_RN,
        AttentionRows(decode=(tiles,)),
        rows.form,
    )

    rows.assert_out()
