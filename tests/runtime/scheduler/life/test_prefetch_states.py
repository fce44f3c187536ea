"""What has become of the last prefetches is remembered, and of no tenant at another's cost."""

from raydix.ids import RequestId, TenantId
from raydix.runtime.scheduler.life.prefetch_states import (
    PrefetchProgress,
    PrefetchStates,
    PrefetchStatus,
)


def ended(tenant: int, num_pages: int = 1) -> PrefetchProgress:
    return PrefetchProgress(
        status=PrefetchStatus.COMPLETED,
        tenant_id=TenantId(tenant),
        num_pages=num_pages,
        num_found_pages=0,
    )


def known(states: PrefetchStates, *names: str) -> list[bool]:
    return [states.find(RequestId(name)) is not None for name in names]


def test_the_tenant_that_has_most_gives_up_its_oldest() -> None:
    states = PrefetchStates(num_ended=3)
    states.add(RequestId("quiet"), ended(1))
    for index in range(100):
        states.add(RequestId(f"loud-{index}"), ended(2))
    assert known(states, "quiet", "loud-97", "loud-98", "loud-99") == [True, False, True, True]


def test_the_later_of_two_of_one_name_counts() -> None:
    states = PrefetchStates(num_ended=2)
    states.add(RequestId("a"), ended(1, num_pages=1))
    states.add(RequestId("a"), ended(2, num_pages=2))
    states.add(RequestId("b"), ended(2))
    states.add(RequestId("c"), ended(3))
    assert known(states, "a", "b", "c") == [False, True, True]


def test_what_is_remembered_is_bounded_whoever_asks() -> None:
    states = PrefetchStates(num_ended=10)
    for index in range(1000):
        states.add(RequestId(f"{index}"), ended(index))
    assert len(states._ended) == len(states._of_tenant) == 10
