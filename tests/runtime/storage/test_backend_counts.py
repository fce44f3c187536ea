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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_no_error(code: int, caplog: pytest.LogCaptureFixture) -> None:
    counts = BackendCounts("the store")

    assert counts.os_error(OSError(code, "full")) is ObjectStatus.FULL
    assert counts.os_error(OSError(errno.EIO, "broken")) is ObjectStatus.IO_ERROR

    assert counts.figures() == {"disk_full": 1, "io_errors": 1}
    assert len(caplog.messages) == 1
