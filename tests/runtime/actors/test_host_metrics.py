from raydix.runtime.actors.host_metrics import HOST_METRICS, PAGE_TOKENS
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.metrics import LabelValues
from tests.runtime.actors.sample_values import LAYOUT, values_of


def host_values(*, has_storage: bool, **counted: int) -> dict[tuple[str, LabelValues], float]:
    settings = HostSettings(page_size=16, has_storage=has_storage)
    core = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), settings)
    return values_of(HOST_METRICS, {**core.stats(), **counted, PAGE_TOKENS: 16})


def test_host_pages_are_told_by_group_and_state() -> None:
    values = host_values(has_storage=False)

    states = ("free", "filling", "ready", "quarantined")
    assert [values["l2_pages", ("0", state)] for state in states] == [0, 0, 0, 0]


def test_prefetched_tokens_are_counted_by_what_became_of_them() -> None:
    values = host_values(has_storage=True, l3_reads_ok=3, l3_reads_bad_checksum=2)

    assert values["prefetch_submitted_tokens_total", ()] == 5 * 16
    assert values["prefetch_completed_tokens_total", ()] == 3 * 16
    assert values["prefetch_unfulfilled_tokens_total", ("bad_checksum",)] == 2 * 16


def test_writes_that_were_dropped_are_counted_by_reason() -> None:
    values = host_values(has_storage=True, l3_writes_dropped_full=4, l3_writes_dropped_failed=1)

    assert values["l3_dropped_pages_total", ("full",)] == 4
    assert values["l3_dropped_pages_total", ("failed",)] == 1


def test_the_breaker_says_whether_there_is_l3() -> None:
    assert host_values(has_storage=True)["l3_breaker_state", ()] == 0
    assert host_values(has_storage=False)["l3_breaker_state", ()] == 3
