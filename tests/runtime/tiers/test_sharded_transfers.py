"""Several tensor-parallel ranks over one arena: each moves its heads, and pages stay canonical."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.tiers.tier_pair import LAYOUT, NO_COPIES, Tiers

HEADS = replace(LAYOUT, groups=LAYOUT.groups[:2])
"""The groups whose pages differ from rank to rank."""
MakeTiers = Callable[[int, int], Tiers]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_tiers(request: pytest.FixtureRequest) -> Iterator[MakeTiers]:
    """Makes the tiers of rank `rank` of `num_ranks`, all over the first one's arena."""
    made: list[Tiers] = []

    def make(rank: int, num_ranks: int) -> Tiers:
        shard = KvShard(layout=HEADS, rank=rank, num_ranks=num_ranks)
        # Each rank maps the arena for itself, as CUDA registers memory once.
        arena = HostArena.attach(made[0].arena.location) if made else None
        made.append(Tiers(request.param, shard, arena))
        return made[-1]

    yield make
    for tiers in made:
        tiers.engine.close()
    assert [tiers.errors for tiers in made] == [[] for _ in made]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_many_ranks_write_one_rank_reads_and_back(
    make_tiers: MakeTiers, group: int, num_ranks: int
) -> None:
    whole = make_tiers(0, 1)
    ranks = [make_tiers(rank, num_ranks) for rank in range(num_ranks)]
    host_page = whole.arena.geometry.pages_per_slab * group
    original = whole.fill_page(3, group)
    whole.engine.start(NO_COPIES, whole.copies(1, [(3, host_page)], group))
    whole.finish()

    for rank in ranks:
        rank.engine.start(rank.copies(2, [(5, host_page)], group), NO_COPIES)
        rank.finish()
    whole.arena.payload(host_page, group)[:] = bytes(len(original))
    for rank in ranks:
        rank.engine.start(NO_COPIES, rank.copies(3, [(5, host_page)], group))
        [report] = rank.finish()
        assert (report.transfer_id, report.is_stale) == (3, False)
    whole.engine.start(whole.copies(4, [(7, host_page)], group), NO_COPIES)
    whole.finish()

    assert whole.host_page(host_page, group) == original
    assert whole.page(7, group) == original


def test_a_rank_keeps_its_run_of_heads_in_every_layer(make_tiers: MakeTiers) -> None:
    whole, second = make_tiers(0, 1), make_tiers(1, 2)
    whole.fill_page(3, 0)
    whole.engine.start(NO_COPIES, whole.copies(1, [(3, 0)]))
    whole.finish()

    second.engine.start(second.copies(2, [(4, 0)]), NO_COPIES)
    second.finish()

    kept, expected = second.pools[0][4], whole.pools[0][3][:, 1:]
    assert (kept.view(torch.int32) == expected.contiguous().view(torch.int32)).all()
