"""What every transfer engine promises, shown on the CPU engine; the CUDA one joins where there is a GPU."""

import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.cache.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers, layer_runs
from raydix.runtime.tiers.gpu_pool import as_bytes, make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import (
    Direction,
    GroupPages,
    LayerCopy,
    Transfer,
    TransferDone,
    TransferEngine,
)

LAYOUT = KvLayout(
    page_size=4,
    dtype="float32",
    dtype_bytes=4,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.WINDOW, layers=(1,), num_kv_heads=1, head_dim=8, window=8),
    ),
)
NUM_PAGES = 12
NO_COPIES = PageCopies()


class Tiers:
    """Pools and an arena with known bytes, and an engine between them."""

    def __init__(self, device: str, **options: float) -> None:
        self.device = torch.device(device)
        self.pools = make_pools(LAYOUT, NUM_PAGES, self.device)
        self.arena = HostArena.create(LAYOUT, 400_000, num_threads=1)
        self.random = np.random.default_rng(7)
        self.done: queue.SimpleQueue[TransferDone] = queue.SimpleQueue()
        self.errors: list[BaseException] = []
        make: Callable[..., TransferEngine] = CpuTransfers if device == "cpu" else CudaTransfers
        self.engine = make(
            LAYOUT, self.pools, self.arena, on_done=self.done.put, on_error=self.errors.append, **options
        )

    def fill_host_page(self, host_page_id: int, group: int) -> bytes:
        payload = self.arena.payload(HostPageId(host_page_id), group)
        payload[:] = self.random.bytes(len(payload))
        return bytes(payload)

    def fill_page(self, page_id: int, group: int) -> bytes:
        pool = as_bytes(self.pools[group])
        data = self.random.integers(0, 256, pool.shape[1], dtype=np.uint8)
        pool[page_id] = torch.from_numpy(data).to(self.device)
        return data.tobytes()

    def page(self, page_id: int, group: int) -> bytes:
        return as_bytes(self.pools[group])[page_id].cpu().numpy().tobytes()

    def host_page(self, host_page_id: int, group: int) -> bytes:
        return bytes(self.arena.payload(HostPageId(host_page_id), group))

    def copies(self, transfer_id: int, pairs: list[tuple[int, int]], group: int = 0) -> PageCopies:
        host_pages = [host_page for _, host_page in pairs]
        return PageCopies(
            transfer_ids=int32_array([transfer_id] * len(pairs)),
            groups=int32_array([group] * len(pairs)),
            page_ids=int32_array(page for page, _ in pairs),
            host_page_ids=int32_array(host_pages),
            generations=int32_array(self.arena.generations[host_pages]),
        )

    def finish(self) -> list[TransferDone]:
        self.engine.drain()
        reports = []
        while not self.done.empty():
            reports.append(self.done.get())
        return reports


def joined(*parts: PageCopies) -> PageCopies:
    def column(name: str) -> NDArray[np.int32]:
        return int32_array(np.concatenate([getattr(part, name) for part in parts]))

    names = ("transfer_ids", "groups", "page_ids", "host_page_ids", "generations")
    return PageCopies(**{name: column(name) for name in names})


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def tiers(request: pytest.FixtureRequest) -> Iterator[Tiers]:
    made = Tiers(request.param)
    yield made
    made.engine.close()
    assert made.errors == []


def test_a_page_survives_the_way_down_and_up_again(tiers: Tiers) -> None:
    originals = {page: tiers.fill_page(page, 0) for page in (3, 5, 6)}

    tiers.engine.start(NO_COPIES, tiers.copies(1, [(3, 10), (5, 2), (6, 7)]))
    tiers.finish()
    tiers.engine.start(tiers.copies(2, [(9, 10), (1, 2), (12, 7)]), NO_COPIES)
    tiers.finish()

    assert (tiers.page(9, 0), tiers.page(1, 0), tiers.page(12, 0)) == tuple(originals.values())


def test_a_zeroed_page_and_a_foreign_page_are_noticed(tiers: Tiers) -> None:
    """The poisoned controls of the test above: it can fail."""
    original, foreign = tiers.fill_page(3, 0), tiers.fill_page(4, 0)
    tiers.engine.start(NO_COPIES, tiers.copies(1, [(3, 10), (4, 11)]))
    tiers.finish()

    tiers.arena.payload(HostPageId(10), 0)[:] = bytes(len(original))
    tiers.engine.start(joined(tiers.copies(2, [(7, 10)]), tiers.copies(3, [(8, 11)])), NO_COPIES)
    tiers.finish()

    assert tiers.page(7, 0) != original
    assert tiers.page(8, 0) != original
    assert tiers.page(8, 0) == foreign


def test_a_pool_page_is_the_canonical_page(tiers: Tiers) -> None:
    """Layer, kv head, key or value, token, dim: the first of these varies slowest."""
    expected = np.arange(3 * 2 * 2 * 4 * 8, dtype=np.float32).reshape(3, 2, 2, 4, 8)
    tiers.arena.payload(HostPageId(0), 0)[:] = expected.tobytes()

    tiers.engine.start(tiers.copies(1, [(2, 0)]), NO_COPIES)
    tiers.finish()

    assert np.array_equal(tiers.pools[0][2].cpu().numpy(), expected)


def test_copies_leave_headers_and_neighbours_alone(tiers: Tiers) -> None:
    headers = [bytes(tiers.arena.page(HostPageId(page), 0)[:64]) for page in range(4)]
    neighbours = [tiers.fill_host_page(page, 0) for page in (0, 2)]
    tiers.fill_page(4, 0)
    padding = tiers.page(0, 0)

    tiers.engine.start(NO_COPIES, tiers.copies(1, [(4, 1)]))
    tiers.finish()

    assert [tiers.host_page(0, 0), tiers.host_page(2, 0)] == neighbours
    assert [bytes(tiers.arena.page(HostPageId(page), 0)[:64]) for page in range(4)] == headers
    assert tiers.page(0, 0) == padding


def test_one_transfer_may_span_groups_and_wait_for_layers_of_each(tiers: Tiers) -> None:
    other_slab = tiers.arena.geometry.pages_per_slab
    full = tiers.fill_host_page(1, 0)
    window = tiers.fill_host_page(other_slab, 1)

    tiers.engine.start(joined(tiers.copies(5, [(3, 1)]), tiers.copies(5, [(4, other_slab)], group=1)), NO_COPIES)
    for layer in range(4):
        tiers.engine.wait_layer(5, layer)
    reports = tiers.finish()

    assert (tiers.page(3, 0), tiers.page(4, 1)) == (full, window)
    assert [(report.transfer_id, report.num_bytes) for report in reports] == [(5, len(full) + len(window))]


def test_a_layer_that_was_waited_for_has_arrived(tiers: Tiers) -> None:
    pages = list(range(1, NUM_PAGES + 1))
    payloads = [np.frombuffer(tiers.fill_host_page(page, 0), np.uint8).reshape(3, -1) for page in pages]
    tiers.engine.start(tiers.copies(1, [(page, page) for page in pages]), NO_COPIES)

    for index, layer in enumerate(LAYOUT.groups[0].layers):
        tiers.engine.wait_layer(1, layer)
        arrived = as_bytes(tiers.pools[0])[1:].view(NUM_PAGES, 3, -1)[:, index].cpu().numpy()
        assert np.array_equal(arrived, np.stack([payload[index] for payload in payloads]))


def test_waiting_for_a_finished_or_unknown_load_returns_at_once(tiers: Tiers) -> None:
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)
    tiers.finish()

    tiers.engine.wait_layer(1, 3)
    tiers.engine.wait_layer(99, 0)


def test_each_transfer_is_reported_once_and_only_loads_count_bytes(tiers: Tiers) -> None:
    size = LAYOUT.payload_bytes(0)

    tiers.engine.start(
        joined(tiers.copies(1, [(1, 1), (2, 2)]), tiers.copies(2, [(3, 3)])), tiers.copies(3, [(4, 4), (5, 5)])
    )
    reports = tiers.finish()

    assert {report.transfer_id: report.num_bytes for report in reports} == {1: 2 * size, 2: size, 3: 0}
    assert len(reports) == 3
    assert all(report.started_s <= report.ended_s and not report.is_stale for report in reports)


def test_a_load_from_a_page_that_changed_hands_is_stale(tiers: Tiers) -> None:
    planned = joined(tiers.copies(1, [(1, 1), (2, 2)]), tiers.copies(2, [(3, 3)]))
    tiers.arena.generations[2] += 1

    tiers.engine.start(planned, NO_COPIES)

    assert {report.transfer_id: report.is_stale for report in tiers.finish()} == {1: True, 2: False}


@pytest.mark.parametrize(
    "pair", [(0, 1), (NUM_PAGES + 1, 1), (-1, 1), (1, -1), (1, 1 << 20)], ids=lambda pair: f"{pair[0]}-{pair[1]}"
)
def test_pages_that_do_not_exist_are_refused(tiers: Tiers, pair: tuple[int, int]) -> None:
    copies = PageCopies(
        transfer_ids=int32_array([1]),
        groups=int32_array([0]),
        page_ids=int32_array([pair[0]]),
        host_page_ids=int32_array([pair[1]]),
        generations=int32_array([0]),
    )

    with pytest.raises(AccountingError):
        tiers.engine.start(copies, NO_COPIES)
    assert tiers.finish() == []


def test_a_host_page_beyond_its_groups_slab_is_refused(tiers: Tiers) -> None:
    geometry = tiers.arena.geometry
    assert geometry.slab_pages(0) < geometry.pages_per_slab

    with pytest.raises(AccountingError, match="slab"):
        tiers.engine.start(tiers.copies(1, [(1, geometry.slab_pages(0))]), NO_COPIES)


def test_closing_finishes_what_has_begun() -> None:
    tiers = Tiers("cpu")
    payload = tiers.fill_host_page(1, 0)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    tiers.engine.close()

    assert tiers.done.get().transfer_id == 1
    assert tiers.page(1, 0) == payload


# The CPU engine alone -------------------------------------------------------------------------------------------------


def test_transfers_end_out_of_order_as_the_seed_says() -> None:
    def order(seed: int) -> list[int]:
        tiers = Tiers("cpu", seed=seed, num_threads=1)
        tiers.engine.start(joined(*[tiers.copies(number, [(number, number)]) for number in range(1, 9)]), NO_COPIES)
        ended = [report.transfer_id for report in tiers.finish()]
        tiers.engine.close()
        return ended

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != sorted(order(1))


def test_a_failed_copy_is_reported_and_wakes_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("bus error")

    monkeypatch.setattr(CpuTransfers, "_copy_layer", fail)
    failed = threading.Event()
    tiers = Tiers("cpu")
    tiers.engine._on_error = lambda _: failed.set()  # type: ignore[attr-defined]
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.wait_layer(1, 0)
    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.drain()
    assert failed.wait(10)


def test_a_transfer_id_in_flight_is_refused() -> None:
    tiers = Tiers("cpu", copy_delay_s=0.05, num_threads=1)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    with pytest.raises(AccountingError, match="in flight"):
        tiers.engine.start(joined(tiers.copies(2, [(2, 2)]), tiers.copies(1, [(3, 3)])), NO_COPIES)
    tiers.finish()
    tiers.engine.close()


# The CUDA engine alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer_mib", "expected"),
    [(8, [[0], [1], [2], [3]]), (5, [[0, 1], [2, 3]]), (3, [[0, 1, 2], [3]]), (1, [[0, 1, 2, 3]])],
)
def test_layers_share_an_event_until_their_run_is_long_enough(layer_mib: int, expected: list[list[int]]) -> None:
    size = layer_mib << 18
    pages = GroupPages(page_ids=int32_array(range(1, 5)), host_page_ids=int32_array(range(4)))
    transfer = Transfer(
        transfer_id=1,
        direction=Direction.LOAD,
        groups={0: pages},
        host_page_ids=pages.host_page_ids,
        generations=int32_array([0] * 4),
        layer_copies=tuple(LayerCopy(layer=i, group=0, start=i * size, stop=(i + 1) * size) for i in range(4)),
    )

    assert [[copy.layer for copy in run] for run in layer_runs(transfer)] == expected


@pytest.mark.gpu
def test_copies_are_right_before_and_after_the_arena_is_registered() -> None:
    tiers = Tiers("cuda")
    payload = tiers.fill_host_page(1, 0)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)
    assert isinstance(tiers.engine, CudaTransfers)

    tiers.engine.wait_registered()
    tiers.engine.start(tiers.copies(2, [(2, 1)]), NO_COPIES)
    tiers.finish()

    assert (tiers.page(1, 0), tiers.page(2, 0)) == (payload, payload)
    tiers.engine.close()


@pytest.mark.gpu
def test_a_backup_sees_what_was_enqueued_before_it() -> None:
    tiers = Tiers("cuda")
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(50):
        busy = busy @ busy / 64
    tiers.pools[0][3].fill_(1.5)

    tiers.engine.start(NO_COPIES, tiers.copies(1, [(3, 3)]))
    tiers.finish()

    assert np.all(np.frombuffer(tiers.host_page(3, 0), np.float32) == 1.5)
    tiers.engine.close()


@pytest.mark.gpu
def test_waiting_for_a_layer_holds_the_stream_back_and_not_the_caller() -> None:
    tiers = Tiers("cuda")
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    payload = tiers.fill_host_page(1, 0)
    torch.cuda.synchronize()

    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)
    tiers.engine.wait_layer(1, 3)
    seen = as_bytes(tiers.pools[0])[1].clone()

    assert seen.cpu().numpy().tobytes() == payload
    tiers.finish()
    tiers.engine.close()
