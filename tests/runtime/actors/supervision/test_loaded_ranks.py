import asyncio

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.gpu_model import LoadReport
from raydix.runtime.actors.supervision.loaded_ranks import LoadedRanks
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout

LAYOUT = KvLayout(
    page_size=16,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4),),
)


def report(*num_pages: int, fingerprint: bytes = b"same") -> LoadReport:
    return LoadReport(
        fingerprint=fingerprint,
        layout=LAYOUT,
        num_pages=num_pages,
        max_position_embeddings=64,
        vocab_size=10,
        eos_token_ids=(),
    )


async def test_ranks_agree_on_the_fewest_pages_once_the_last_has_loaded() -> None:
    ranks = LoadedRanks(2, "/model")
    agreed = asyncio.create_task(ranks.agreed())

    ranks.note(0, report(10, 8))
    await asyncio.sleep(0)
    assert not agreed.done()

    ranks.note(1, report(7, 9))
    assert await agreed == (report(10, 8), (7, 8))


def test_a_rank_with_other_weights_is_refused() -> None:
    ranks = LoadedRanks(2, "/model")
    ranks.note(0, report(10))

    with pytest.raises(ConfigError, match="rank 1 loaded other weights from /model than rank 0"):
        ranks.note(1, report(10, fingerprint=b"other"))


async def test_what_was_agreed_holds_whatever_a_restarted_rank_finds() -> None:
    ranks = LoadedRanks(1, "/model")
    ranks.note(0, report(10, 8))

    ranks.note(0, report(12, 7))

    assert (await ranks.agreed())[1] == (10, 8)
