"""The fake backend's link: latency and bandwidth that batches share."""

import pytest

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.fake import FakeBackend, Faults
from tests.runtime.storage.stores import NAMESPACE, OBJECT_BYTES, make_object

OK = ObjectStatus.OK


class Clock:
    """Time that passes in sleeps alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> FakeBackend:
    faults = Faults(latency_s=0.5, max_bytes_per_s=OBJECT_BYTES)
    backend = FakeBackend(None, faults, clock=lambda: clock.now_s, sleep=clock.sleep)
    backend.open(memoryview(b""), NAMESPACE)
    return backend


def test_batch_takes_its_latency_once_and_its_bytes_each(backend: FakeBackend, clock: Clock) -> None:
    assert backend.batch_put_from([make_object(name) for name in range(4)], 100.0) == [OK] * 4
    assert clock.now_s == pytest.approx(4.5)
    assert backend.batch_exists([make_object(1).name]) == [OK]
    assert clock.now_s == pytest.approx(5.0)


def test_object_that_cannot_come_in_time_is_timed_out_without_a_wait(backend: FakeBackend, clock: Clock) -> None:
    refs = [make_object(name) for name in range(4)]
    statuses = backend.batch_put_from(refs, 3.0)
    assert statuses == [OK, OK, ObjectStatus.TIMED_OUT, ObjectStatus.TIMED_OUT]
    assert clock.now_s == pytest.approx(2.5)
    assert backend.batch_put_from(refs[2:3], 100.0) == [OK], "nor does it hold up others"
    assert clock.now_s == pytest.approx(4.0)
