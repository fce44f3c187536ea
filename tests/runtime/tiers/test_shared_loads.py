"""Pages that are equal on all ranks: each copies a share and gives it to its peers."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.transfers import Direction, Transfer
from tests.runtime.tiers.lane_of_tiers import FULL_AND_LATENT, LATENT, LaneOfTiers
from tests.runtime.tiers.tier_pair import Tiers, joined

MakeLane = Callable[..., LaneOfTiers]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_lane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeLane]:
    """Makes lanes, all over the first one's arena."""
    yield from _lanes(request.param, tmp_path)


@pytest.fixture
def make_cpu_lane(tmp_path: Path) -> Iterator[MakeLane]:
    """The same where a wait for a layer holds the caller, so that it can be looked at."""
    yield from _lanes("cpu", tmp_path)


def _lanes(device: str, folder: Path) -> Iterator[MakeLane]:
    made: list[LaneOfTiers] = []

    def make(layout: KvLayout, num_ranks: int, **options: Any) -> LaneOfTiers:
        arena = made[0].arena if made else None
        made.append(LaneOfTiers(layout, num_ranks, folder, device, arena=arena, **options))
        return made[-1]

    yield make
    for lane in made:
        lane.close()


@pytest.mark.parametrize("num_pages", [1, 2, 3, 7])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_latent_page_comes_to_all_ranks_and_is_read_once(
    make_lane: MakeLane, num_ranks: int, num_pages: int
) -> None:
    lane = make_lane(LATENT, num_ranks)
    payloads = [lane.ranks[0].fill_host_page(index, 0) for index in range(num_pages)]

    lane.start(lane.load(1, [(index + 1, index) for index in range(num_pages)]))
    reports = lane.finish()

    for tiers in lane.ranks:
        assert [tiers.page(index + 1, 0) for index in range(num_pages)] == payloads
    assert sum(report.num_bytes for [report] in reports) == num_pages * len(payloads[0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_what_some_ranks_write_others_read_in_any_order_of_copies(
    make_lane: MakeLane, num_ranks: int, seed: int
) -> None:
    writers = make_lane(FULL_AND_LATENT, 2, seed=seed)
    readers = make_lane(FULL_AND_LATENT, num_ranks, seed=3 * seed)
    single = make_lane(FULL_AND_LATENT, 1)
    groups = range(3)
    payloads = [
        [single.ranks[0].fill_page(index + 1, group) for index in range(5)] for group in groups
    ]
    pairs = [(index + 1, index) for index in range(5)]
    single.start(backups=joined(*[single.load(1, pairs, group) for group in groups]))
    single.finish()

    # Each transfer moves pages of all groups; up by the writers, down elsewhere, up by the readers.
    every = [
        joined(*[writers.load(index, pairs[index : index + 1], g) for g in groups])
        for index in range(5)
    ]
    writers.start(joined(*every))
    writers.finish()
    for group in groups:
        for index in range(5):
            host_page = single.host_page(group, index)
            single.arena.payload(host_page, group)[:] = bytes(len(payloads[group][index]))
    writers.start(backups=joined(*every))
    writers.finish()
    readers.start(joined(*every))
    readers.finish()

    for group in groups:
        host_pages = [single.host_page(group, index) for index in range(5)]
        assert [single.ranks[0].host_page(page, group) for page in host_pages] == payloads[group]
    for tiers in readers.ranks:
        for group in (1, 2):
            assert [tiers.page(index + 1, group) for index in range(5)] == payloads[group]


class Gate:
    """A `Delay` at which a rank's copies wait: each layer takes one pass."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)

    def __call__(self, transfer: Transfer) -> None:
        """Wait, before a load's layer, until the gate opens for it."""
        if transfer.direction is Direction.LOAD:
            self._passes.acquire()

    def open(self, num_layers: int) -> None:
        self._passes.release(num_layers)


def gate_second(gate: Gate) -> Callable[[int], dict[str, Any]]:
    return lambda rank: {"delay": gate} if rank == 1 else {}


def test_a_load_is_done_once_the_slowest_peer_has_brought_its_share(make_lane: MakeLane) -> None:
    gate = Gate()
    lane = make_lane(LATENT, 2, options=gate_second(gate))
    first, second = lane.ranks
    payloads = [first.fill_host_page(index, 0) for index in range(2)]

    lane.start(lane.load(1, [(1, 0), (2, 1)]))
    # The first page comes from the first rank, which is through with all it can do alone.
    while second.page(1, 0) != payloads[0]:
        pass
    assert (first.done.empty(), second.done.empty()) == (True, True)
    gate.open(3)
    reports = lane.finish()

    assert [[report.transfer_id for report in done] for done in reports] == [[1], [1]]
    assert [first.page(2, 0), second.page(1, 0)] == [payloads[1], payloads[0]]


def test_a_layer_is_used_once_the_shares_of_all_ranks_have_arrived(make_cpu_lane: MakeLane) -> None:
    gate = Gate()
    lane = make_cpu_lane(LATENT, 2, options=gate_second(gate))
    first = lane.ranks[0]
    payload = [first.fill_host_page(index, 0) for index in range(2)][1]
    layer_bytes = len(payload) // 3
    lane.start(lane.load(1, [(1, 0), (2, 1)]))

    for layer in range(3):
        waiting = threading.Thread(target=first.engine.wait_layer, args=(1, layer))
        waiting.start()
        assert first.page(2, 0)[layer * layer_bytes :] == bytes(len(payload) - layer * layer_bytes)
        assert waiting.is_alive()
        gate.open(1)
        waiting.join()
        until = (layer + 1) * layer_bytes
        assert first.page(2, 0)[:until] == payload[:until]


def test_a_layer_that_peers_have_no_part_in_does_not_wait_for_them(make_cpu_lane: MakeLane) -> None:
    gate = Gate()
    lane = make_cpu_lane(FULL_AND_LATENT, 2, options=gate_second(gate))
    lane.start(joined(lane.load(1, [(1, 0)], 0), lane.load(1, [(1, 0), (2, 1)], 1)))

    lane.ranks[0].engine.wait_layer(1, 0)

    assert lane.ranks[0].done.empty()
    gate.open(4)


def test_a_share_may_come_before_the_plan_that_asks_for_it(make_lane: MakeLane) -> None:
    lane = make_lane(LATENT, 2)
    first, second = lane.ranks
    payloads = [first.fill_host_page(index, 0) for index in range(2)]
    load = lane.load(1, [(3, 0), (4, 1)])

    first.engine.start(load, lane.load(2, [], 0))
    while second.page(3, 0) != payloads[0]:
        pass
    second.engine.start(load, lane.load(2, [], 0))
    lane.finish()

    assert [[tiers.page(3, 0), tiers.page(4, 0)] for tiers in lane.ranks] == [payloads] * 2


def test_marks_of_an_old_load_say_nothing_about_one_of_the_same_number(
    make_cpu_lane: MakeLane,
) -> None:
    """A Scheduler that was started again numbers its transfers from the start."""
    gate = Gate()
    lane = make_cpu_lane(LATENT, 2, options=gate_second(gate))
    lane.start(lane.load(1, [(1, 0), (2, 1)]))
    gate.open(3)
    lane.finish()
    payload = lane.ranks[0].fill_host_page(1, 0)

    lane.start(lane.load(1, [(1, 0), (2, 1)]))
    waiting = threading.Thread(target=lane.ranks[0].engine.wait_layer, args=(1, 2))
    waiting.start()
    gate.open(2)
    assert waiting.is_alive()
    gate.open(1)
    waiting.join()

    assert lane.ranks[0].page(2, 0) == payload


def test_who_waits_for_a_lost_peer_goes_on_once_it_is_abandoned(make_lane: MakeLane) -> None:
    lane = make_lane(LATENT, 2)
    first = lane.ranks[0]
    no_copies = lane.load(2, [])
    first.engine.start(lane.load(1, [(1, 0), (2, 1)]), no_copies)
    waiting = [
        threading.Thread(target=first.engine.wait_layer, args=(1, 2)),
        threading.Thread(target=first.engine.drain),
    ]
    for thread in waiting:
        thread.start()
    assert all(thread.is_alive() for thread in waiting)

    first.engine.abandon_peers()

    for thread in waiting:
        thread.join()
    assert first.done.empty()


def test_a_load_that_comes_after_the_peers_were_abandoned_ends_unreported(
    make_lane: MakeLane,
) -> None:
    lane = make_lane(LATENT, 2)
    first = lane.ranks[0]
    first.engine.abandon_peers()

    first.engine.start(lane.load(1, [(1, 0), (2, 1)]), lane.load(2, [(3, 2)]))

    assert [report.transfer_id for report in first.finish()] == [2]


def test_a_rank_backs_up_its_share_alone(make_lane: MakeLane) -> None:
    lane = make_lane(LATENT, 2)
    second = lane.ranks[1]
    pages = [second.fill_page(index + 1, 0) for index in range(4)]

    pairs = [(index + 1, index) for index in range(4)]
    second.engine.start(lane.load(1, []), lane.load(2, pairs))
    second.finish()

    assert [second.host_page(index, 0) for index in (1, 3)] == [pages[1], pages[3]]
    assert [any(second.host_page(index, 0)) for index in (0, 2)] == [False, False]


def test_a_page_that_a_peer_has_read_and_that_changed_hands_makes_a_load_stale(
    make_lane: MakeLane,
) -> None:
    lane = make_lane(LATENT, 2)
    planned = lane.load(1, [(1, 0), (2, 1)])
    lane.arena.generations[1] += 1

    lane.start(planned)

    assert [[report.is_stale for report in done] for done in lane.finish()] == [[True], [True]]


def test_a_rank_that_shares_pages_with_nobody_is_refused() -> None:
    with pytest.raises(AccountingError, match="rank 0 of 2 shares pages with no peers"):
        Tiers("cpu", KvShard(layout=LATENT, rank=0, num_ranks=2))
