"""What every transfer engine promises; the CUDA one joins where there is a GPU."""

from collections.abc import Iterator

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes
from tests.runtime.tiers.tier_pair import LAYOUT, NO_COPIES, NUM_PAGES, Tiers, joined


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


def test_a_latent_page_is_the_canonical_page_and_survives_the_way_up_and_down(
    tiers: Tiers,
) -> None:
    """Layer, token, dim: the first of these varies slowest."""
    latent, slab_pages = 2, tiers.arena.geometry.pages_per_slab
    expected = np.arange(2 * 4 * 12, dtype=np.float32).reshape(2, 4, 12)
    tiers.arena.payload(HostPageId(slab_pages), latent)[:] = expected.tobytes()

    tiers.engine.start(tiers.copies(1, [(2, slab_pages)], latent), NO_COPIES)
    [loaded] = tiers.finish()
    tiers.engine.start(NO_COPIES, tiers.copies(2, [(2, slab_pages + 1)], latent))
    tiers.finish()

    assert np.array_equal(tiers.pools[latent][2].cpu().numpy(), expected)
    assert loaded.num_bytes == expected.nbytes
    assert tiers.host_page(slab_pages + 1, latent) == expected.tobytes()


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

    tiers.engine.start(
        joined(tiers.copies(5, [(3, 1)]), tiers.copies(5, [(4, other_slab)], group=1)), NO_COPIES
    )
    for layer in range(4):
        tiers.engine.wait_layer(5, layer)
    reports = tiers.finish()

    assert (tiers.page(3, 0), tiers.page(4, 1)) == (full, window)
    assert [(report.transfer_id, report.num_bytes) for report in reports] == [
        (5, len(full) + len(window))
    ]


def test_a_layer_that_was_waited_for_has_arrived(tiers: Tiers) -> None:
    pages = list(range(1, NUM_PAGES + 1))
    payloads = [
        np.frombuffer(tiers.fill_host_page(page, 0), np.uint8).reshape(3, -1) for page in pages
    ]
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
        joined(tiers.copies(1, [(1, 1), (2, 2)]), tiers.copies(2, [(3, 3)])),
        tiers.copies(3, [(4, 4), (5, 5)]),
    )
    reports = tiers.finish()

    assert {report.transfer_id: report.num_bytes for report in reports} == {
        1: 2 * size,
        2: size,
        3: 0,
    }
    assert len(reports) == 3
    assert all(report.started_s <= report.ended_s and not report.is_stale for report in reports)


def test_a_load_from_a_page_that_changed_hands_is_stale(tiers: Tiers) -> None:
    planned = joined(tiers.copies(1, [(1, 1), (2, 2)]), tiers.copies(2, [(3, 3)]))
    tiers.arena.generations[2] += 1

    tiers.engine.start(planned, NO_COPIES)

    assert {report.transfer_id: report.is_stale for report in tiers.finish()} == {1: True, 2: False}


@pytest.mark.parametrize(
    "pair",
    [(0, 1), (NUM_PAGES + 1, 1), (-1, 1), (1, -1), (1, 1 << 20)],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
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


def test_transfers_end_out_of_order_as_the_seed_says() -> None:
    def order(seed: int) -> list[int]:
        tiers = Tiers("cpu", seed=seed, num_threads=1)
        tiers.engine.start(
            joined(*[tiers.copies(number, [(number, number)]) for number in range(1, 9)]), NO_COPIES
        )
        ended = [report.transfer_id for report in tiers.finish()]
        tiers.engine.close()
        return ended

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != sorted(order(1))


def test_a_failed_copy_is_reported_and_wakes_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError("bus error")

    monkeypatch.setattr(CpuTransfers, "_copy_layer", fail)
    tiers = Tiers("cpu")
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.wait_layer(1, 0)
    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.drain()

    tiers.engine.close()
    assert isinstance(tiers.errors[0], OSError)


def test_a_transfer_id_in_flight_is_refused() -> None:
    tiers = Tiers("cpu", copy_delay_s=0.05, num_threads=1)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    with pytest.raises(AccountingError, match="in flight"):
        tiers.engine.start(joined(tiers.copies(2, [(2, 2)]), tiers.copies(1, [(3, 3)])), NO_COPIES)
    tiers.finish()
    tiers.engine.close()
