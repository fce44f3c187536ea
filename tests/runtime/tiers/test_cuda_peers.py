"""What ranks on GPUs do beyond what ranks that share pages promise everywhere."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.transfers import Transfer
from tests.runtime.tiers.lane_of_tiers import FULL_AND_LATENT, LATENT, LaneOfTiers
from tests.runtime.tiers.tier_pair import NO_COPIES, joined

pytestmark = pytest.mark.gpu
MakeLane = Callable[..., LaneOfTiers]


@pytest.fixture
def make_lane(tmp_path: Path) -> Iterator[MakeLane]:
    made: list[LaneOfTiers] = []

    def make(num_ranks: int, **options: Any) -> LaneOfTiers:
        made.append(LaneOfTiers(LATENT, num_ranks, tmp_path, "cuda", **options))
        return made[-1]

    yield make
    for lane in made:
        lane.close()


def slow_second(rank: int) -> dict[str, Any]:
    def sleep(transfer: Transfer) -> None:
        torch.cuda._sleep(1_000_000_000)

    return {"delay": sleep} if rank == 1 else {}


def test_a_layer_waits_on_the_device_for_a_slow_peer(make_lane: MakeLane) -> None:
    lane = make_lane(2, options=slow_second)
    first = lane.ranks[0]
    payloads = [first.fill_host_page(index, 0) for index in range(2)]
    # The first use of a kernel waits for the device.
    as_bytes(first.pools[0])[1:3].clone()

    lane.start(lane.load(1, [(1, 0), (2, 1)]))
    with torch.cuda.device(first.device):
        first.engine.wait_layer(1, 2)
        seen = as_bytes(first.pools[0])[1:3].clone()
        assert first.done.empty(), "the host went on before the load had ended"

    assert [page.numpy().tobytes() for page in seen.cpu()] == payloads
    lane.finish()


def test_streams_that_wait_for_a_lost_peer_end_once_it_is_abandoned(make_lane: MakeLane) -> None:
    lane = make_lane(2)
    first = lane.ranks[0]
    first.engine.start(lane.load(1, [(1, 0), (2, 1)]), NO_COPIES)
    with torch.cuda.device(first.device):
        first.engine.wait_layer(1, 2)
        waited = torch.cuda.current_stream().record_event()
        assert not waited.query()

        first.engine.abandon_peers()

        waited.synchronize()
    first.engine.drain()
    assert first.done.empty()


def test_counters_may_wrap_around(make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = make_lane(2)
    payloads = [lane.ranks[0].fill_host_page(index, 0) for index in range(2)]
    for tiers in lane.ranks:
        peers = tiers.engine._peers  # type: ignore[attr-defined]
        monkeypatch.setattr(peers, "_num_runs", (1 << 31) - 2)
        peers._counters.own.fill_((1 << 31) - 2)
        torch.cuda.synchronize(tiers.device)

    for transfer in range(1, 5):
        lane.start(lane.load(transfer, [(2 * transfer, 0), (2 * transfer + 1, 1)]))
    lane.finish()

    for tiers in lane.ranks:
        assert [tiers.page(page, 0) for page in range(2, 10)] == payloads * 4


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_many_loads_and_backups_at_once_mix_nothing_up(num_ranks: int, tmp_path: Path) -> None:
    lane = LaneOfTiers(FULL_AND_LATENT, num_ranks, tmp_path, "cuda")
    random = np.random.default_rng(0)
    payloads = [
        [lane.ranks[0].fill_host_page(lane.host_page(group, index), group) for index in range(12)]
        for group in range(3)
    ]
    for start in range(0, 40, 4):
        plans = []
        held = random.permutation(12)
        for transfer in range(4):
            pairs = [(int(page) + 1, int(page)) for page in held[3 * transfer : 3 * transfer + 3]]
            plans += [lane.load(start + transfer, pairs, group) for group in range(3)]
        lane.start(joined(*plans))
        lane.finish()
        for tiers in lane.ranks:
            for group in (1, 2):
                assert [tiers.page(index + 1, group) for index in range(12)] == payloads[group]
                tiers.pools[group].zero_()
    lane.close()
