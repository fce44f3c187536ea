from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_prefill import (
    TILE_TOKENS,
    is_extension,
    paged_prefill,
    tile_tokens,
)
from raydix.kernels.attention.rows import PrefillRow, cut_rows
from tests.kernels.attention.paged_rows import FORMS, LAYER, PagedRows

CONTEXTS, NUM_TOKENS = (70, 5, 130, 64, 1), (70, 1, 37, 5, 1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def prefill(rows: PagedRows) -> None:
    tiles_X4 = torch.from_numpy(cut_rows(rows.rows, tile_tokens(rows.q_TQD.dtype))).to(
        rows.q_TQD.device
    )
    paged_prefill(
        rows.q_TQD,
        rows.pool_PLH2SD,
        LAYER,
        rows.tables_RN,
        tiles_X4,
        form=rows.form,
        out_TQD=rows.out_TQD,
    )


def make_row(num_tokens: int, context_tokens: int) -> PrefillRow:
    return PrefillRow(row=0, first_token=0, num_tokens=num_tokens, context_tokens=context_tokens)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 4, 128, 64),
        (2, 3, 80, 16),
        (1, 2, 64, 4),
        (3, 1, 16, 1),
        (1, 2, 192, 16),
        (1, 2, 512, 64),
    ],
)
def test_queries_see_their_prefix_and_what_precedes_them(
    device: torch.device, shape: tuple[int, int, int, int]
) -> None:
    rows = PagedRows(shape, CONTEXTS, NUM_TOKENS, dtype=torch.float32, device=device)

    prefill(rows)

    rows.assert_out()


@pytest.mark.parametrize("page_size", [64, 16])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_keys_weigh_as_the_form_says(
    device: torch.device, form: dict[str, Any], page_size: int
) -> None:
    rows = PagedRows(
        (2, 3, 32, page_size),
        (250, 5, 130, 1),
        (100, 5, 37, 1),
        dtype=torch.float32,
        device=device,
        **form,
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.parametrize("shape", [(2, 3, 80, 16), (2, 4, 32, 64)])
@pytest.mark.parametrize("form", [{}, FORMS["all at once"]], ids=["plain", "all at once"])
def test_pages_of_fp8_are_read_as_they_are(
    device: torch.device, form: dict[str, Any], shape: tuple[int, int, int, int]
) -> None:
    rows = PagedRows(
        shape, CONTEXTS, NUM_TOKENS, dtype=torch.float32, device=device, is_fp8=True, **form
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("window", [50, 300])
@pytest.mark.parametrize(
    "shape",
    [(2, 8, 64, 64), (2, 4, 128, 64), (2, 2, 256, 64), (1, 2, 256, 16), (2, 8, 192, 64)]
    + [(2, 8, 512, 64), (1, 2, 512, 16)],
)
def test_windows_caps_and_sinks_fit_all_head_dims(
    shape: tuple[int, int, int, int], window: int, is_fp8: bool, dtype: torch.dtype
) -> None:
    rows = PagedRows(
        shape,
        (700, 5, 1300, 256, 129),
        (300, 1, 1300, 130, 129),
        dtype=dtype,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
        **FORMS["all at once"] | {"window": window},
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 4, 128, 64), (2, 4, 128, 16), (2, 3, 80, 16), (1, 8, 64, 4), (2, 2, 96, 128)]
)
def test_bfloat16_is_as_exact_as_its_rounding(
    shape: tuple[int, int, int, int], is_fp8: bool
) -> None:
    contexts, num_tokens = (700, 5, 1300, 256, 129), (300, 1, 1300, 130, 129)
    rows = PagedRows(
        shape,
        contexts,
        num_tokens,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("page_size", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("heads", [(8, 4), (2, 1), (5, 8), (1, 1)])
def test_programs_meet_in_tiles_of_all_lengths(
    heads: tuple[int, int], page_size: int, is_fp8: bool
) -> None:
    """Where Hopper's matrix units are, they do this: more tiles than a program looks at at once."""
    contexts = (3000, 129, 128, 1, 2047, *range(1, 140))
    num_tokens = (900, 129, 128, 1, 1, *range(1, 140))
    rows = PagedRows(
        (*heads, 128, page_size),
        contexts,
        num_tokens,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("is_fp8", [False, True])
def test_the_same_rows_have_the_same_bits_again(is_fp8: bool) -> None:
    rows = PagedRows(
        (8, 4, 128, 64),
        (5000, 300),
        (1000, 300),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
    )
    prefill(rows)
    first_TQD = rows.out_TQD.clone()

    for _ in range(20):
        rows.out_TQD.fill_(torch.nan)
        prefill(rows)
        assert torch.equal(rows.out_TQD, first_TQD)


def test_strided_queries_are_read_in_place(device: torch.device) -> None:
    rows = PagedRows((2, 2, 16, 16), (40, 9), (20, 9), dtype=torch.float32, device=device)
    qkv_TXD = torch.randn(29, 8, 16, device=device)
    qkv_TXD[:, :4] = rows.q_TQD
    rows.q_TQD = qkv_TXD[:, :4]

    prefill(rows)

    rows.assert_out()


def test_tiles_cover_every_token_once_longest_first() -> None:
    rows = [
        PrefillRow(row=3, first_token=5, num_tokens=300, context_tokens=1000),
        PrefillRow(row=0, first_token=305, num_tokens=2, context_tokens=2),
    ]

    tiles = cut_rows(rows, TILE_TOKENS).tolist()

    assert tiles == [[3, 261, 44, 1000], [3, 133, 128, 956], [3, 5, 128, 828], [0, 305, 2, 2]]
    assert cut_rows([], TILE_TOKENS).shape == (0, 4)


def test_only_few_tokens_behind_a_long_prefix_are_an_extension() -> None:
    assert is_extension(make_row(16, 16_400), num_query_heads=32, num_sms=132)
    assert is_extension(make_row(2 * TILE_TOKENS, 16_400), num_query_heads=32, num_sms=132)
    assert not is_extension(make_row(2 * TILE_TOKENS + 1, 16_400), num_query_heads=32, num_sms=132)
    assert not is_extension(make_row(16, 16), num_query_heads=32, num_sms=132)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_TQD": torch.zeros(2, 2, 16, dtype=torch.float16)}, "expected bfloat16 or float32"),
        ({"out_TQD": torch.zeros(3, 2, 16)}, "do not match queries"),
        ({"pool_PLH2SD": torch.zeros(4, 2, 1, 2, 16)}, "expected contiguous"),
        ({"pool_PLH2SD": torch.zeros(4, 2, 1, 2, 24, 16)}, "power of two"),
        ({"pool_PLH2SD": torch.zeros(4, 2, 1, 2, 8, 32)}, "1 KV heads of 32"),
        ({"pool_PLH2SD": torch.zeros(4, 1, 1, 2, 8, 16)}, "Layer 1 is not"),
        ({"block_tables_RN": torch.zeros(1, 2, dtype=torch.int64)}, "expected int32"),
        ({"q_TQD": torch.zeros(2, 2, 32)[..., ::2]}, "expected 1 in D"),
        ({"tiles_X4": torch.zeros(1, 3, dtype=torch.int32)}, "The tiles are"),
    ],
)
def test_impossible_inputs_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    inputs = {
        "q_TQD": torch.zeros(2, 2, 16),
        "pool_PLH2SD": torch.zeros(4, 2, 1, 2, 8, 16),
        "block_tables_RN": torch.zeros(1, 2, dtype=torch.int32),
        "tiles_X4": torch.zeros(1, 4, dtype=torch.int32),
        "out_TQD": torch.zeros(2, 2, 16),
    } | change

    with pytest.raises(ValueError, match=message):
        paged_prefill(
            inputs["q_TQD"],
            inputs["pool_PLH2SD"],
            1,
            inputs["block_tables_RN"],
            inputs["tiles_X4"],
            form=AttentionForm(scale=1.0),
            out_TQD=inputs["out_TQD"],
        )
