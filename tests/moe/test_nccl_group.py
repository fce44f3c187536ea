"""How a group of NCCL ends; the groups themselves are in the tests on GPUs."""

import threading

import pytest

from raydix.moe.dispatch.nccl_group import end_nccl


class FakeGroup:
    """Its abort ends once nothing holds it any longer."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.is_free = threading.Event()
        self.has_ended = threading.Event()
        self.is_late = False
        self.thread: threading.Thread | None = None

    def abort(self) -> None:
        self.thread = threading.current_thread()
        self.has_begun.set()
        self.is_free.wait()
        self.has_ended.set()
        if self.is_late:
            raise RuntimeError("ProcessGroup abort timed out")


def test_a_group_that_graphs_hold_is_left_to_a_thread_that_no_exit_waits_for() -> None:
    group = FakeGroup()

    end_nccl(group, wait_s=0)  # type: ignore[arg-type]

    assert group.has_begun.wait(10)
    assert not group.has_ended.is_set()
    assert group.thread is not None
    assert group.thread.daemon
    group.is_free.set()
    assert group.has_ended.wait(10)


def test_a_group_that_nothing_holds_has_ended_on_return() -> None:
    group = FakeGroup()
    group.is_free.set()

    end_nccl(group, wait_s=10)  # type: ignore[arg-type]

    assert group.has_ended.is_set()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_end_that_takes_longer_than_operations_may_is_no_error() -> None:
    group = FakeGroup()
    group.is_late = True
    group.is_free.set()

    end_nccl(group, wait_s=10)  # type: ignore[arg-type]

    assert group.has_ended.is_set()
