import random

import pytest
import torch

pytest.importorskip("triton")


from raydix.kernels.attention.decode_hopper import BLOCK_KEYS
from raydix.kernels.attention.decode_shares import weigh_decode_parts
from raydix.kernels.attention.decode_tiles import DecodeTiles
from tests.kernels.attention.paged_rows import PagedRows
from tests.kernels.attention.test_paged_decode import decode, tiles_of
from tests.kernels.attention.test_prefill_shares import attend

HEADS, GROUP, DIM = 2, 3, 16
MIN_BLOCKS = 2


@pytest.mark.parametrize("tokens_per_tile", [1, 5])
@pytest.mark.parametrize("num_shares", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_tile_are_weighed_and_whole_tiles_left_alone(
    device: torch.device, seed: int, num_shares: int, tokens_per_tile: int
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    counts = [rng.randint(1, tokens_per_tile) for _ in range(rng.choice((1, 3, 140)))]
    contexts = [count + rng.choice((0, 3, 200, 1500)) for count in counts]
    if seed:
        # A tile that is skipped.
        contexts.insert(1, 0)
        counts.insert(1, 1)
    firsts = [sum(counts[:tile]) for tile in range(len(counts))]
    blocks = [-(-context // BLOCK_KEYS) for context in contexts]
    share_blocks = max(-(-sum(blocks) // num_shares), MIN_BLOCKS)

    parts_size = (2 * num_shares, HEADS, tokens_per_tile * GROUP)
    parts_YHXD = torch.full((*parts_size, DIM), torch.nan)
    lse_YHX = torch.full(parts_size, torch.nan)
    expected_TQD = torch.full((sum(counts), HEADS * GROUP, DIM), torch.nan)
    out_TQD = torch.full_like(expected_TQD, torch.nan)
    for tile, (first, count, context) in enumerate(zip(firsts, counts, contexts, strict=True)):
        begin = sum(blocks[:tile])
        cuts = range(begin // share_blocks * share_blocks, begin + blocks[tile], share_blocks)
        position_T = torch.arange(context - count, context)
        is_hidden = torch.arange(context)[None, :] > position_T[:, None]
        for query_head in range(HEADS * GROUP if context else 0):
            head, member = divmod(query_head, GROUP)
            scores_TK = torch.randn(count, context).masked_fill(is_hidden, float("-inf"))
            values_KD = torch.randn(context, DIM)
            whole_TD, _ = attend(scores_TK, values_KD, 0, context)
            expected_TQD[first : first + count, query_head] = whole_TD
            if len(cuts) == 1:
                out_TQD[first : first + count, query_head] = whole_TD
                continue
            for cut in cuts:
                start = (max(cut, begin) - begin) * BLOCK_KEYS
                stop = min((cut + share_blocks - begin) * BLOCK_KEYS, context)
                part = 2 * (cut // share_blocks) + (cut <= begin)
                part_TD, lse_T = attend(scores_TK, values_KD, start, stop)
                parts_YHXD[part, head, member : count * GROUP : GROUP] = part_TD
                lse_YHX[part, head, member : count * GROUP : GROUP] = lse_T
    out_TQD = out_TQD.to(device)

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    weigh_decode_parts(
        parts_YHXD.to(device),
        lse_YHX.to(device),
        DecodeTiles(
            rows_B=column([0] * len(counts)),
            tokens_B=column(firsts),
            context_tokens_B=column(contexts),
            num_tokens_B=None if tokens_per_tile == 1 else column(counts),
            tokens_per_tile=tokens_per_tile,
        ),
        out_TQD,
    )

    torch.testing.assert_close(out_TQD.cpu(), expected_TQD, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("page_size", [8, 16, 64, 256])
@pytest.mark.parametrize("num_tokens", [1, 16])
@pytest.mark.parametrize("num_rows", [1, 5, 150])
def test_many_rows_with_skipped_tiles_among_them_give_the_same_bits_twice(
    num_rows: int, num_tokens: int, page_size: int, is_fp8: bool
) -> None:
    torch.manual_seed(0)
    rng = random.Random(num_rows)
    top = 700 if num_rows > 5 else 5000
    contexts = [rng.randint(1, top) for _ in range(num_rows)]
    counts = [min(context, rng.randint(1, num_tokens)) for context in contexts]
    rows = PagedRows(
        (8, 4, 128, page_size),
        tuple(contexts),
        tuple(counts),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        is_fp8=is_fp8,
    )
    own = tiles_of(rows, num_tokens)
    skipped = rows.column([0] * 130)
    tiles = DecodeTiles(
        rows_B=torch.cat([skipped, own.rows_B]),
        tokens_B=torch.cat([skipped, own.tokens_B]),
        context_tokens_B=torch.cat([skipped, own.context_tokens_B]),
        num_tokens_B=None
        if own.num_tokens_B is None
        else torch.cat([skipped + 1, own.num_tokens_B]),
        tokens_per_tile=num_tokens,
    )

    decode(rows, tiles, 2)

    rows.assert_out()
    first_TQD = rows.out_TQD.clone()
    rows.out_TQD.fill_(torch.nan)
    decode(rows, tiles, 2)
    assert torch.equal(rows.out_TQD, first_TQD)
