"""Ranks whose GPUs have no room for buffers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import FileStore

from raydix.errors import ConfigError
from raydix.moe.dispatch.symmetric_sizes import memory_bytes
from raydix.runtime.model.experts.dispatchers import require_room
from tests.moe.dispatch_conformance import SMALL

SHAPE = replace(SMALL, num_ranks=2)


@pytest.mark.parametrize("lacking", [0, 1, None])
def test_a_rank_without_room_is_told_by_all(tmp_path: Path, lacking: int | None) -> None:
    needed = memory_bytes(SHAPE)

    def check(rank: int) -> str | None:
        store = FileStore(str(tmp_path / "meeting"), 2)
        try:
            require_room(store, rank, SHAPE, needed - (rank == lacking))
        except ConfigError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(check, range(2))

    assert first == second
    if lacking is None:
        assert first is None
    else:
        assert first is not None
        assert f"(rank {lacking}). Lower scheduler.chunked_prefill_tokens" in first
        assert "tokens of each of 2 ranks" in first
