from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.latent_attention import (
    choose_latent_splits,
    latent_decode,
    latent_prefill,
)
from raydix.kernels.attention.paged_prefill import tile_tokens
from raydix.kernels.attention.rows import cut_rows
from tests.kernels.attention.latent_rows import LAYER, LatentRows

CONTEXTS = (70, 5, 130, 64, 1)
ONE_EACH = (1, 1, 1, 1, 1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def decode(rows: LatentRows, tiles: DecodeTiles, num_splits: int) -> None:
    latent_decode(
        rows.q_TQD,
        rows.pool_PLSD,
        LAYER,
        rows.tables_RN,
        tiles,
        scale=rows.scale,
        num_splits=num_splits,
        out_TQV=rows.out_TQV,
    )


def prefill(rows: LatentRows) -> None:
    latent_prefill(
        rows.q_TQD,
        rows.pool_PLSD,
        LAYER,
        rows.tables_RN,
        torch.from_numpy(cut_rows(rows.rows, tile_tokens(rows.q_TQD.dtype))).to(rows.q_TQD.device),
        scale=rows.scale,
        out_TQV=rows.out_TQV,
    )


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("shape", [(16, 48, 32, 64), (4, 40, 24, 16), (20, 48, 32, 4)])
def test_one_query_per_row_sees_its_whole_context(
    device: torch.device, shape: tuple[int, int, int, int], num_splits: int
) -> None:
    rows = LatentRows(shape, CONTEXTS, ONE_EACH, dtype=torch.float32, device=device)

    decode(rows, rows.tiles(1), num_splits)

    rows.assert_out()


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("num_heads", [3, 16, 40])
def test_several_queries_of_a_row_are_causal(
    device: torch.device, num_heads: int, num_splits: int
) -> None:
    rows = LatentRows(
        (num_heads, 48, 32, 16),
        (40, 5, 26, 16, 1),
        (4, 1, 3, 2, 1),
        dtype=torch.float32,
        device=device,
    )

    decode(rows, rows.tiles(4), num_splits)

    rows.assert_out()


def test_tokens_outside_the_tiles_and_rows_without_context_are_left_alone(
    device: torch.device,
) -> None:
    rows = LatentRows((4, 48, 32, 4), (9, 6, 7), (2, 1, 1), dtype=torch.float32, device=device)
    whole = rows.tiles(2)
    tiles = DecodeTiles(
        rows_B=whole.rows_B[1:],
        tokens_B=whole.tokens_B[1:],
        context_tokens_B=whole.context_tokens_B[1:] * torch.tensor([1, 0], device=device),
    )

    decode(rows, tiles, 2)

    assert rows.out_TQV.isnan().flatten(1).all(1).tolist() == [True, True, False, True]


@pytest.mark.parametrize("shape", [(3, 48, 32, 64), (16, 40, 24, 4)])
def test_prefill_sees_its_prefix_and_what_precedes_it(
    device: torch.device, shape: tuple[int, int, int, int]
) -> None:
    rows = LatentRows(shape, (50, 5, 40, 1), (33, 5, 12, 1), dtype=torch.float32, device=device)

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("num_heads", [16, 32, 128])
def test_decode_serves_the_shapes_of_deepseek(
    num_heads: int, page_size: int, num_splits: int, dtype: torch.dtype
) -> None:
    rows = LatentRows(
        (num_heads, 576, 512, page_size),
        (700, 5, 130, 64, 1),
        ONE_EACH,
        dtype=dtype,
        device=torch.device("cuda"),
    )

    decode(rows, rows.tiles(1), num_splits)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("shape", [(16, 576, 512, 64), (20, 320, 256, 16), (16, 192, 160, 4)])
def test_extensions_fill_blocks_of_several_tokens(
    shape: tuple[int, int, int, int], num_splits: int
) -> None:
    rows = LatentRows(
        shape,
        (700, 5, 130, 64, 1),
        (6, 1, 3, 6, 1),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )

    decode(rows, rows.tiles(6), num_splits)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_heads", [16, 128])
def test_prefill_serves_the_shapes_of_deepseek(num_heads: int, dtype: torch.dtype) -> None:
    rows = LatentRows(
        (num_heads, 576, 512, 64),
        (700, 5, 300, 129),
        (300, 1, 300, 128),
        dtype=dtype,
        device=torch.device("cuda"),
    )

    prefill(rows)

    rows.assert_out()


@pytest.mark.gpu
@pytest.mark.parametrize("num_heads", [16, 128])
def test_a_captured_graph_reads_new_lengths_and_tables(num_heads: int) -> None:
    rows = LatentRows(
        (num_heads, 576, 512, 64),
        CONTEXTS,
        ONE_EACH,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )
    tiles = rows.tiles(1)
    contexts_B, tables_RN = tiles.context_tokens_B.clone(), rows.tables_RN.clone()
    decode(rows, tiles, 3)
    graph = torch.cuda.CUDAGraph()
    tiles.context_tokens_B.fill_(1)
    rows.tables_RN.copy_(tables_RN.flip(0))
    with torch.cuda.graph(graph):
        decode(rows, tiles, 3)

    tiles.context_tokens_B.copy_(contexts_B)
    rows.tables_RN.copy_(tables_RN)
    rows.out_TQV.fill_(torch.nan)
    graph.replay()

    rows.assert_out()


@pytest.mark.parametrize(("num_heads", "num_splits"), [(16, 4), (32, 4), (64, 2), (128, 1)])
def test_splits_leave_a_multiprocessor_to_each_full_block(num_heads: int, num_splits: int) -> None:
    assert choose_latent_splits(64, num_heads, 8192, 132, torch.bfloat16) == num_splits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_TQD": torch.zeros(2, 2, 48, dtype=torch.float16)}, "expected bfloat16 or float32"),
        ({"pool_PLSD": torch.zeros(4, 2, 8, 48, dtype=torch.bfloat16)}, "do not match queries"),
        ({"pool_PLSD": torch.zeros(4, 2, 1, 8, 48)}, "expected contiguous"),
        ({"pool_PLSD": torch.zeros(4, 2, 24, 48)}, "power of two"),
        ({"pool_PLSD": torch.zeros(4, 1, 8, 48)}, "Layer 1 is not"),
        ({"q_TQD": torch.zeros(2, 2, 32)}, "Queries are"),
        ({"out_TQV": torch.zeros(2, 2, 48)}, "less than 48"),
        ({"block_tables_RN": torch.zeros(1, 2, dtype=torch.int64)}, "expected int32"),
        ({"tiles_X4": torch.zeros(1, 3, dtype=torch.int32)}, "The tiles are"),
    ],
)
def test_impossible_inputs_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    inputs: dict[str, Any] = {
        "q_TQD": torch.zeros(2, 2, 48),
        "pool_PLSD": torch.zeros(4, 2, 8, 48),
        "block_tables_RN": torch.zeros(1, 2, dtype=torch.int32),
        "tiles_X4": torch.zeros(1, 4, dtype=torch.int32),
        "out_TQV": torch.zeros(2, 2, 32),
    } | change

    with pytest.raises(ValueError, match=message):
        latent_prefill(layer=1, scale=1.0, **inputs)
