import threading

import pytest

from raydix.runtime.actors.transfer_reports import TransferReports
from raydix.runtime.tiers.transfers import TransferDone


def done(
    transfer_id: int, num_bytes: int, began_s: float, ended_s: float, *, is_stale: bool = False
) -> TransferDone:
    return TransferDone(
        transfer_id=transfer_id,
        is_stale=is_stale,
        num_bytes=num_bytes,
        started_s=began_s,
        ended_s=ended_s,
    )


def test_what_has_gathered_travels_in_one_message_in_order_of_completion() -> None:
    reports = TransferReports(rank=3)
    for transfer_id in (5, 2, 9):
        reports.add(done(transfer_id, 10, 0.0, 1.0, is_stale=transfer_id == 2))

    message = reports.take()

    assert message is not None
    assert message.rank == 3
    assert message.transfer_ids.tolist() == [5, 2, 9]
    assert message.stale_transfer_ids.tolist() == [2]


def test_time_in_which_loads_overlap_counts_once() -> None:
    reports = TransferReports(rank=0)
    reports.add(done(1, 100, 0.0, 2.0))
    reports.add(done(2, 100, 1.0, 3.0))
    reports.add(done(3, 0, 0.0, 50.0))
    first = reports.take()
    reports.add(done(4, 100, 2.5, 4.0))
    second = reports.take()

    assert first is not None
    assert second is not None
    assert (first.num_bytes, first.seconds) == (200, pytest.approx(3.0))
    assert (second.num_bytes, second.seconds) == (100, pytest.approx(1.0))


def test_flushing_waits_until_what_was_added_has_been_sent() -> None:
    reports = TransferReports(rank=0)
    reports.add(done(1, 0, 0.0, 1.0))
    flushed = threading.Event()
    thread = threading.Thread(target=lambda: (reports.flush(), flushed.set()))
    thread.start()

    reports.take()
    assert not flushed.is_set()
    reports.sent()

    thread.join(10)
    assert flushed.is_set()


def test_after_the_end_what_is_left_comes_first() -> None:
    reports = TransferReports(rank=0)
    reports.add(done(1, 0, 0.0, 1.0))
    reports.close()

    message = reports.take()

    assert message is not None
    assert reports.take() is None
    assert reports.stats()["num_transfers"] == 1
