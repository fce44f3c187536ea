"""The counters of a backend, and what of its errors is logged."""

import errno

import pytest

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend_counts import BackendCounts


def test_errors_are_counted_and_only_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    counts = BackendCounts("the store")

    for number in range(3):
        assert counts.io_error(f"error {number}") is ObjectStatus.IO_ERROR

    assert counts.figures() == {"io_errors": 3}
    [line] = caplog.messages
    assert line == "the store: error 0; further errors are only counted"


def test_last_error_says_whose_it_is_and_how_many_there_were() -> None:
    counts = BackendCounts("the store")
    assert counts.last_error is None

    counts.io_error("refused", 5)
    assert counts.timeout("no answer") is ObjectStatus.TIMED_OUT
    counts.os_error(OSError(errno.ENOSPC, "full"))

    assert counts.last_error is not None
    assert counts.last_error.text == "the store: [Errno 28] full"
    assert counts.last_error.num_errors == 7
    assert counts.figures() == {"io_errors": 5, "timeouts": 1, "disk_full": 1}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_no_io_error(code: int, caplog: pytest.LogCaptureFixture) -> None:
    counts = BackendCounts("the store")

    assert counts.os_error(OSError(code, "full")) is ObjectStatus.FULL
    assert counts.os_error(OSError(errno.EIO, "broken")) is ObjectStatus.IO_ERROR

    assert counts.figures() == {"disk_full": 1, "io_errors": 1}
    assert len(caplog.messages) == 2


def test_full_disk_is_told_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    counts = BackendCounts("the store")

    for _ in range(3):
        counts.os_error(OSError(errno.ENOSPC, "full"))

    [line] = caplog.messages
    assert line.startswith("the store: [Errno 28] full; pages for which there is no room")
    assert "cache.l3.max_bytes" in line
    assert counts.figures() == {"disk_full": 3}
