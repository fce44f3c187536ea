"""Backends that return something else than one status per object, as anybody's code may."""

from typing import Any

import pytest

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backends.fake import FakeBackend
from tests.runtime.storage.stores import Bench

OK, IO_ERROR = ObjectStatus.OK, ObjectStatus.IO_ERROR
WRONG = [[], [OK], [OK] * 3, [0, 0], [None, OK], [OK, 77], [OK, "ok"], 2, None]
"""Wrong answers for two objects. 0 is what OK looks like as a byte, and 2 would be so many bytes of
it.
"""


@pytest.mark.parametrize("returned", WRONG, ids=repr)
@pytest.mark.parametrize("method", ["batch_exists", "batch_get_into", "batch_put_from"])
def test_what_is_no_status_for_each_object_fails_the_batch(method: str, returned: Any) -> None:
    bench = Bench(FakeBackend())
    bench.write([1, 2])

    setattr(bench.backend, method, lambda *_: returned)
    ask = {"batch_exists": bench.exists, "batch_get_into": bench.read}.get(method, bench.write)
    assert ask([1, 2]) == [IO_ERROR, IO_ERROR], "HostMemory would end at another answer"

    error = bench.worker.last_error()
    assert error is not None
    bench.close()


def test_what_is_no_status_of_a_removal_fails_it() -> None:
    bench = Bench(FakeBackend())
    bench.backend.clear = lambda: None  # type: ignore[method-assign, assignment, return-value]
    assert bench.clear() == [IO_ERROR]
    bench.close()
