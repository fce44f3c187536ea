import logging

from raydix.runtime.actors.storage_news import StorageNews
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.circuit_breaker import BreakerState
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.settings import HostSettings
from tests.runtime.actors.sample_values import LAYOUT


def look(state: str, num_trips: int) -> dict[str, object]:
    return {"l3_breaker": state, "l3_breaker_trips": num_trips}


def test_a_failure_and_the_end_of_it_are_told_once_each() -> None:
    news = StorageNews()
    assert news.tell(look("closed", 0), 1.0) is None

    failed = news.tell(look("open", 1), 2.0)
    assert failed is not None
    assert failed[0] == logging.WARNING
    assert failed[1].startswith("L3 fails or is too slow")
    assert news.tell(look("half_open", 1), 3.0) is None
    assert news.tell(look("open", 1), 4.0) is None

    assert news.tell(look("closed", 1), 5.5) == (
        logging.INFO,
        "L3 is in use again, 3.5 s after it failed",
    )
    assert news.tell(look("closed", 1), 6.5) is None


def test_a_failure_between_two_looks_is_told() -> None:
    news = StorageNews()
    news.tell(look("closed", 0), 1.0)
    assert news.tell(look("closed", 1), 2.0) is not None
    recovered = news.tell(look("closed", 1), 3.0)
    assert recovered is not None
    assert recovered[0] == logging.INFO


def test_a_backend_that_is_detached_is_not_waited_for() -> None:
    news = StorageNews()
    news.tell(look("open", 1), 1.0)
    assert news.tell(look("none", 0), 2.0) is None
    assert news.tell(look("closed", 0), 3.0) is None
    assert news.tell(look("open", 1), 4.0) is not None


def test_these_are_figures_that_host_memory_has() -> None:
    settings = HostSettings(page_size=16, has_storage=True)
    figures = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), settings).stats()
    assert (figures["l3_breaker"], figures["l3_breaker_trips"]) == (BreakerState.CLOSED, 0)
    assert StorageNews().tell(figures, 1.0) is None
