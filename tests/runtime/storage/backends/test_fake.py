"""The fake backend's link: latency and bandwidth that batches share."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
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


def test_batch_takes_its_latency_once_and_its_bytes_each(
    backend: FakeBackend, clock: Clock
) -> None:
    assert backend.batch_put_from([make_object(name) for name in range(4)], 100.0) == [OK] * 4
    assert clock.now_s == pytest.approx(4.5)
    assert backend.batch_exists([make_object(1).name]) == [OK]
    assert clock.now_s == pytest.approx(5.0)


def test_object_that_cannot_come_in_time_is_waited_for_until_the_deadline(
    backend: FakeBackend, clock: Clock
) -> None:
    refs = [make_object(name) for name in range(4)]
    statuses = backend.batch_put_from(refs, 3.0)
    assert statuses == [OK, OK, ObjectStatus.TIMED_OUT, ObjectStatus.TIMED_OUT]
    assert clock.now_s == pytest.approx(3.0)
    assert backend.batch_put_from(refs[2:3], 100.0) == [OK], "nor does it take the link from others"
    assert clock.now_s == pytest.approx(4.5)


def test_faults_change_while_objects_stay(backend: FakeBackend) -> None:
    refs = [make_object(name) for name in range(2)]
    backend.batch_put_from(refs[:1], 100.0)
    backend.set_faults(Faults(failure_fraction=1.0, refuses_writes=True))
    assert backend.batch_get_into(refs[:1], 100.0) == [ObjectStatus.IO_ERROR]
    backend.set_faults(Faults(refuses_writes=True))
    assert backend.batch_put_from(refs, 100.0) == [OK, ObjectStatus.FULL]
    backend.set_faults(Faults())
    assert backend.batch_get_into(refs, 100.0) == [OK, ObjectStatus.MISSING]


def test_nothing_is_answered_while_the_latency_is_infinite(backend: FakeBackend) -> None:
    backend.batch_put_from([make_object(1)], 100.0)
    backend.set_faults(Faults(latency_s=math.inf))
    with ThreadPoolExecutor(1) as pool:
        exists = pool.submit(backend.batch_exists, [make_object(1).name])
        with pytest.raises(TimeoutError):
            exists.result(timeout=0.05)
        backend.set_faults(Faults())
        assert exists.result(timeout=30) == [OK]
