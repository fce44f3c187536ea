import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.attention.prefill_hopper import BLOCK_KEYS, TILE_TOKENS
from raydix.kernels.attention.prefill_shares import weigh_parts

HEADS, DIM = 2, 16
MIN_BLOCKS = 2


def attend(scores_TK: Tensor, values_KD: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
    """What a program finds among some of the keys, and the logarithm to base 2 of its sums."""
    scores_TK, values_KD = scores_TK[:, first:stop], values_KD[first:stop]
    lse_T = torch.logsumexp(scores_TK, 1)
    weights_TK = torch.exp(scores_TK - lse_T[:, None]).nan_to_num(0.0)
    return weights_TK @ values_KD, lse_T / torch.log(torch.tensor(2.0))


@pytest.mark.parametrize("num_shares", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_tile_are_weighed_and_whole_tiles_left_alone(
    device: torch.device, seed: int, num_shares: int
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tiles = []
    num_rows = 0
    for count in [rng.choice((1, 77, TILE_TOKENS)) for _ in range(rng.choice((1, 3, 140)))]:
        tiles.append((0, num_rows, count, count + rng.choice((0, 3, 200, 1500))))
        num_rows += count
    tiles += [(0, 0, 0, 0)] * rng.choice((0, 20))
    blocks = [-(-context // BLOCK_KEYS) for *_, context in tiles]
    share_blocks = max(-(-sum(blocks) // num_shares), MIN_BLOCKS)

    parts_YQTD = torch.full((2 * num_shares, HEADS, TILE_TOKENS, DIM), torch.nan)
    lse_YQT = torch.full((2 * num_shares, HEADS, TILE_TOKENS), torch.nan)
    expected_TQD = torch.empty(num_rows, HEADS, DIM)
    out_TQD = torch.full_like(expected_TQD, torch.nan)
    for index, (_, first, count, context) in enumerate(tiles):
        begin = sum(blocks[:index])
        cuts = range(begin // share_blocks * share_blocks, begin + blocks[index], share_blocks)
        position_T = torch.arange(context - count, context)
        is_hidden = torch.arange(context)[None, :] > position_T[:, None]
        for head in range(HEADS if count else 0):
            scores_TK = torch.randn(count, context).masked_fill(is_hidden, float("-inf"))
            values_KD = torch.randn(context, DIM)
            whole_TD, _ = attend(scores_TK, values_KD, 0, context)
            expected_TQD[first : first + count, head] = whole_TD
            if len(cuts) == 1:
                out_TQD[first : first + count, head] = whole_TD
                continue
            for cut in cuts:
                start = (max(cut, begin) - begin) * BLOCK_KEYS
                stop = min((cut + share_blocks - begin) * BLOCK_KEYS, context)
                part = 2 * (cut // share_blocks) + (cut <= begin)
                part_TD, lse_T = attend(scores_TK, values_KD, start, stop)
                parts_YQTD[part, head, :count] = part_TD
                lse_YQT[part, head, :count] = lse_T
    out_TQD = out_TQD.to(device)

    weigh_parts(
        parts_YQTD.to(device),
        lse_YQT.to(device),
        torch.tensor(tiles, dtype=torch.int32, device=device),
        out_TQD,
    )

    torch.testing.assert_close(out_TQD.cpu(), expected_TQD, atol=1e-5, rtol=1e-5)
