from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.attention.decode_tiles import MAX_SPLITS, DecodeTiles, choose_num_splits
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_decode import paged_decode
from tests.kernels.attention.paged_rows import FORMS, LAYER, PagedRows

CONTEXTS, NUM_TOKENS = (70, 5, 130, 64, 1), (7, 1, 3, 5, 1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def decode(rows: PagedRows, tiles: DecodeTiles, num_splits: int) -> None:
    paged_decode(
        rows.q_TQD,
        rows.pool_PLH2SD,
        LAYER,
        rows.tables_RN,
        tiles,
        form=rows.form,
        num_splits=num_splits,
        out_TQD=rows.out_TQD,
    )


def tiles_of(rows: PagedRows, tokens_per_tile: int) -> DecodeTiles:
    """One tile per row."""
    return DecodeTiles(
        rows_B=rows.column([row.row for row in rows.rows]),
        tokens_B=rows.column([row.first_token for row in rows.rows]),
        context_tokens_B=rows.column([row.context_tokens for row in rows.rows]),
        num_tokens_B=None
        if tokens_per_tile == 1
        else rows.column([row.num_tokens for row in rows.rows]),
        tokens_per_tile=tokens_per_tile,
    )


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 4, 128, 64),
        (2, 3, 80, 16),
        (1, 8, 64, 4),
        (3, 1, 16, 1),
        (1, 4, 192, 16),
        (1, 4, 512, 64),
    ],
)
def test_one_query_per_row_sees_its_whole_context(
    device: torch.device, shape: tuple[int, int, int, int], num_splits: int
) -> None:
    rows = PagedRows(shape, CONTEXTS, (1, 1, 1, 1, 1), dtype=torch.float32, device=device)

    decode(rows, tiles_of(rows, 1), num_splits)

    rows.assert_out()


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("page_size", [64, 16])
def test_several_queries_of_a_row_are_causal(
    device: torch.device, page_size: int, num_splits: int
) -> None:
    rows = PagedRows(
        (2, 4, 64, page_size), CONTEXTS, NUM_TOKENS, dtype=torch.float32, device=device
    )

    decode(rows, tiles_of(rows, 8), num_splits)

    rows.assert_out()


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 8])
@pytest.mark.parametrize("page_size", [64, 16])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_keys_weigh_as_the_form_says(
    device: torch.device, form: dict[str, Any], page_size: int, num_tokens: int, num_splits: int
) -> None:
    rows = PagedRows(
        (2, 3, 32, page_size),
        (250, 5, 130, 1),
        (num_tokens, min(num_tokens, 5), num_tokens, 1),
        dtype=torch.float32,
        device=device,
        **form,
    )

    decode(rows, tiles_of(rows, num_tokens), num_splits)

    rows.assert_out()


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("shape", [(2, 3, 80, 16), (2, 4, 32, 64)])
@pytest.mark.parametrize("form", [{}, FORMS["all at once"]], ids=["plain", "all at once"])
def test_pages_of_fp8_are_read_as_they_are(
    device: torch.device, form: dict[str, Any], shape: tuple[int, int, int, int], num_splits: int
) -> None:
    rows = PagedRows(
        shape, CONTEXTS, NUM_TOKENS, dtype=torch.float32, device=device, is_fp8=True, **form
    )

    decode(rows, tiles_of(rows, 8), num_splits)

    rows.assert_out()


def test_tokens_outside_the_tiles_and_rows_without_context_are_left_alone(
    device: torch.device,
) -> None:
    rows = PagedRows((1, 2, 16, 4), (9, 6, 7), (2, 1, 1), dtype=torch.float32, device=device)
    tiles = DecodeTiles(
        rows_B=rows.column([1, 2]),
        tokens_B=rows.column([2, 3]),
        context_tokens_B=rows.column([6, 0]),
    )

    decode(rows, tiles, 2)

    assert rows.out_TQD.isnan().flatten(1).all(1).tolist() == [True, True, False, True]


@pytest.mark.gpu
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 4, 128, 64), (2, 4, 128, 16), (2, 3, 80, 16), (1, 8, 64, 4), (2, 2, 256, 16)]
)
def test_bfloat16_is_as_exact_as_its_rounding(
    shape: tuple[int, int, int, int], is_fp8: bool, num_splits: int
) -> None:
    rows = PagedRows(
        shape,
        CONTEXTS,
        NUM_TOKENS,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
    )

    decode(rows, tiles_of(rows, 8), num_splits)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(
    ("dim", "tokens_per_tile"),
    [(dim, count) for dim in (64, 128, 192, 256) for count in (1, 16)] + [(512, 1), (512, 8)],
)
def test_windows_caps_and_sinks_fit_all_head_dims(
    dim: int, tokens_per_tile: int, is_fp8: bool, dtype: torch.dtype
) -> None:
    rows = PagedRows(
        (2, 8, dim, 64),
        (700, 5, 130, 1),
        (tokens_per_tile, min(tokens_per_tile, 5), tokens_per_tile, 1),
        dtype=dtype,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
        **FORMS["all at once"],
    )

    decode(rows, tiles_of(rows, tokens_per_tile), 2)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.float32), (128, torch.bfloat16)])
@pytest.mark.parametrize(
    "form",
    [{}, {"is_fp8": True}, FORMS["all at once"]],
    ids=["plain", "FP8", "all at once"],
)
def test_a_captured_graph_reads_new_lengths_and_tables(
    form: dict[str, Any], dim: int, dtype: torch.dtype
) -> None:
    rows = PagedRows(
        (2, 4, dim, 16),
        CONTEXTS,
        (1, 1, 1, 1, 1),
        dtype=dtype,
        device=torch.device("cuda"),
        **form,
    )
    tiles = tiles_of(rows, 1)
    contexts_B, tables_RN = tiles.context_tokens_B.clone(), rows.tables_RN.clone()
    decode(rows, tiles, 3)
    graph = torch.cuda.CUDAGraph()
    tiles.context_tokens_B.fill_(1)
    rows.tables_RN.copy_(tables_RN.flip(0))
    with torch.cuda.graph(graph):
        decode(rows, tiles, 3)

    tiles.context_tokens_B.copy_(contexts_B)
    rows.tables_RN.copy_(tables_RN)
    rows.out_TQD.fill_(torch.nan)
    graph.replay()

    rows.assert_out()


def test_more_programs_take_more_splits() -> None:
    assert choose_num_splits(16, 8, 8192, num_sms=132, programs_per_sm=4) == 4


@pytest.mark.parametrize(
    ("figures", "num_splits"),
    [
        ((64, 8, 8192), 1),
        ((1, 8, 16384), 32),
        ((1, 4, 384), 4),
        ((1, 1, 1), 1),
        ((512, 8, 131_072), 16),
        ((1, 1, 10**7), MAX_SPLITS),
    ],
)
def test_splits_fill_the_device_and_bound_the_longest_row(
    figures: tuple[int, int, int], num_splits: int
) -> None:
    assert choose_num_splits(*figures, num_sms=132) == num_splits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows_B": torch.zeros(2)}, "Tiles have columns"),
        ({"tokens_B": torch.zeros(3, dtype=torch.int64)}, "one length"),
        ({"tokens_per_tile": 2}, "need num_tokens_B"),
        ({"tokens_per_tile": 65, "num_tokens_B": torch.ones(2, dtype=torch.int64)}, "at most 128"),
    ],
)
def test_impossible_tiles_are_refused(change: dict[str, object], message: str) -> None:
    rows = PagedRows((1, 2, 16, 4), (9, 6), (1, 1), dtype=torch.float32, device=torch.device("cpu"))
    column = torch.zeros(2, dtype=torch.int64)
    fields: dict[str, object] = {"rows_B": column, "tokens_B": column, "context_tokens_B": column}

    with pytest.raises(ValueError, match=message):
        decode(rows, DecodeTiles(**{**fields, **change}), 1)  # type: ignore[arg-type]


def test_tiles_of_heads_that_fill_shared_memory_are_refused() -> None:
    rows = PagedRows((1, 2, 512, 4), (9,), (1,), dtype=torch.float32, device=torch.device("cpu"))
    column = torch.zeros(1, dtype=torch.int64)
    tiles = DecodeTiles(
        rows_B=column,
        tokens_B=column,
        context_tokens_B=column,
        num_tokens_B=column,
        tokens_per_tile=33,
    )

    with pytest.raises(ValueError, match=r"2 query heads of 512 dims .* at most 64"):
        decode(rows, tiles, 1)


@pytest.mark.parametrize("num_splits", [0, MAX_SPLITS + 1])
def test_an_impossible_number_of_splits_is_refused(num_splits: int) -> None:
    rows = PagedRows((1, 2, 16, 4), (9, 6), (1, 1), dtype=torch.float32, device=torch.device("cpu"))

    with pytest.raises(ValueError, match="num_splits"):
        decode(rows, tiles_of(rows, 1), num_splits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"soft_cap": 0.0}, "soft cap is 0"),
        ({"sinks_Q": torch.zeros(3)}, "Sinks are"),
        ({"kv_scales_2H": torch.zeros(2)}, "Scales of keys and values are"),
    ],
)
def test_an_impossible_form_is_refused(change: dict[str, Any], message: str) -> None:
    rows = PagedRows((1, 2, 16, 4), (9, 6), (1, 1), dtype=torch.float32, device=torch.device("cpu"))
    rows.form = AttentionForm(scale=1.0, **change)

    with pytest.raises(ValueError, match=message):
        decode(rows, tiles_of(rows, 1), 1)
