"""What clients say of their sessions reaches L1 and L2, and nobody else's pages."""

import math
from typing import Any

import pytest

from raydix.runtime.cache.page_key import pack_tokens, root_key
from raydix.runtime.config.policies import EvictionPolicy, WritePolicy
from raydix.runtime.messages import host
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.request.users import session_user
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

END = Retention(kind=RetentionKind.END)
A, B = [1] * 8, [2] * 8


class RecordingDriver(CoreDriver):
    """Remembers what HostMemory is told of ends and hints."""

    def __init__(self, **changes: Any) -> None:
        self.ends: list[host.EndUse] = []
        super().__init__(has_host_memory=True, num_pages=(40,), **changes)

    def send(self, event: events.Event) -> None:
        num_before = len(self.to_host)
        super().send(event)
        new = list(self.to_host)[num_before:]
        self.ends += [message for message in new if isinstance(message, host.EndUse)]


def serve(driver: RecordingDriver, tokens: list[int], **fields: Any) -> None:
    """Run a request."""
    name = driver.submit(tokens, max_tokens=1, **fields)
    driver.run()
    assert driver.answers[name].ending == "length"


def hint(driver: RecordingDriver, session_id: str, retention: Retention, **fields: Any) -> None:
    message = RetainSession(session_id=session_id, retention=retention, **fields)
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))


def num_cached(driver: RecordingDriver, tokens: list[int], salt: str | None = None) -> int:
    return (
        driver.core._lanes[0]
        .l1.tree.match(root_key(cache_salt=salt), pack_tokens(tokens))
        .num_pages
    )


def evict(driver: RecordingDriver, num_pages: int) -> None:
    driver.core._lanes[0].l1.evict((num_pages,))
    driver.core.check()


def test_lookups_and_ends_name_their_session_and_only_theirs() -> None:
    driver = RecordingDriver()
    driver.submit(A, max_tokens=1, session_id="s", cache_salt="x")
    [lookup] = [each for each in driver.to_host if isinstance(each, host.Lookup)]
    assert lookup.user == session_user("s", "x")
    assert lookup.user not in (session_user("s", None), session_user("s", "y"))
    assert tenant_of("x") != tenant_of(None)


def test_the_end_of_a_request_tells_l2_what_it_has_computed() -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="s", retention=END)
    [end] = driver.ends
    assert end.user == session_user("s", None)
    assert end.keys == driver.keys(A)
    assert end.retention == END


@pytest.mark.parametrize(("stop_token_ids", "told"), [((), None), ((1,), END)])
def test_a_hint_counts_where_a_request_ends_not_where_it_is_handed_over(
    stop_token_ids: tuple[int, ...], told: Retention | None
) -> None:
    driver = RecordingDriver(write_policy=WritePolicy.WRITE_THROUGH)
    driver.submit(
        A, session_id="s", retention=END, goes_on_elsewhere=True, stop_token_ids=stop_token_ids
    )
    driver.run()
    assert [end.retention for end in driver.ends] == [told]


@pytest.mark.parametrize("comes_later", [False, True])
def test_an_ended_session_leaves_l1_first(comes_later: bool) -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="a")
    serve(driver, B, session_id="b", retention=None if comes_later else END)
    if comes_later:
        hint(driver, "b", END)
    evict(driver, 2)
    assert (num_cached(driver, A), num_cached(driver, B)) == (2, 0)


def test_a_hint_without_a_session_is_of_what_its_request_alone_has_used() -> None:
    driver = RecordingDriver()
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    serve(driver, A, retention=keep)
    serve(driver, B)
    evict(driver, 2)
    assert (num_cached(driver, A), num_cached(driver, B)) == (2, 0), "what is kept goes last"

    serve(driver, B, retention=END)
    driver.now_s += 61.0
    evict(driver, 2)
    assert (num_cached(driver, A), num_cached(driver, B)) == (2, 0), "what ended goes first"
    assert len({end.user for end in driver.ends}) == 3
    assert {end.session_id for end in driver.ends} == {None}


def test_a_hint_counts_for_its_own_tenant_alone() -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="s", cache_salt="x")
    serve(driver, B, session_id="t")
    hint(driver, "s", END, cache_salt="y")
    hint(driver, "t", END, cache_salt="x")
    evict(driver, 2)
    assert (num_cached(driver, A, "x"), num_cached(driver, B)) == (0, 2), "the oldest goes"


def test_a_hint_waits_for_the_last_request_of_its_session() -> None:
    driver = RecordingDriver()
    driver.submit(A, max_tokens=3, session_id="s")
    driver.submit(B, max_tokens=1, session_id="s")
    hint(driver, "s", END)
    assert not driver.ends, "requests of the session live"
    driver.run()
    assert [message.retention for message in driver.ends] == [None, END]


def test_kept_pages_go_last_and_say_whose_they_are() -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="a", retention=Retention(kind=RetentionKind.KEEP, seconds=60.0))
    serve(driver, B, session_id="b")
    [kept] = driver.core.stats()["l1_kept"]
    assert (kept["session_id"], kept["pages"], kept["reason"]) == ("a", 2, "keep")
    evict(driver, 2)
    assert (num_cached(driver, A), num_cached(driver, B)) == (2, 0)

    serve(driver, A, session_id="a")
    assert not driver.core.stats()["l1_kept"], "a request ends the keep before it"


def test_keeps_stay_within_their_budget_and_their_age() -> None:
    driver = RecordingDriver(max_kept_fraction=0.1, max_keep_s=30.0)
    keep = Retention(kind=RetentionKind.KEEP, seconds=1e9)
    for name in range(8):
        serve(driver, [10 + name] * 8, session_id=str(name), retention=keep)
    kept = driver.core.stats()["l1_kept"]
    assert [each["session_id"] for each in kept] == ["6", "7"]
    assert max(each["left_s"] for each in kept) <= 30.0
    driver.wait(31.0)
    driver.send_tick()
    assert not driver.core.stats()["l1_kept"]


@pytest.mark.parametrize(
    ("policy", "first"),
    [(EvictionPolicy.LRU, "B"), (EvictionPolicy.MRU, "A"), (EvictionPolicy.FILO, "A")],
)
def test_what_is_kept_no_longer_goes_as_its_policy_says(policy: EvictionPolicy, first: str) -> None:
    driver = RecordingDriver(eviction=policy)
    serve(driver, B, session_id="b")
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    serve(driver, A, session_id="a", retention=keep)
    driver.wait(61.0)
    driver.send_tick()
    evict(driver, 2)
    left = (num_cached(driver, A), num_cached(driver, B))
    assert left == ((0, 2) if first == "A" else (2, 0))


def test_ten_thousand_hints_cost_no_request_and_hold_nothing() -> None:
    driver = RecordingDriver()
    keep = Retention(kind=RetentionKind.KEEP, seconds=100.0)
    for number in range(10_000):
        message = RetainSession(session_id=str(number), retention=keep)
        driver.core.handle(events.ClientMessage(client_id=CLIENT, message=message), driver.now_s)
    driver.core.check()
    serve(driver, A, session_id="a")
    assert driver.core.stats()["retention_hints"] == 10_000
    assert driver.answers["r1"].ending == "length"


def test_the_next_request_of_a_session_ends_its_keep_on_every_lane() -> None:
    driver = RecordingDriver(num_lanes=2)
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    serve(driver, A, session_id="s", retention=keep)
    tiers = [lane.l1.tree.retention for lane in driver.core._lanes]
    assert [bool(each.kept_users(driver.now_s)) for each in tiers].count(True) == 1

    # Wherever it runs: the session was on both lanes by then.
    for tokens in (B, [3] * 8, [4] * 8):
        driver.submit(tokens, max_tokens=1, session_id="s")
    driver.run()
    assert not any(each.kept_users(driver.now_s) for each in tiers)
    driver.core.check()


@pytest.mark.parametrize("fields", [{}, {"prefix_caching": False}], ids=["waiting", "uncached"])
def test_a_hint_whose_last_request_held_nothing_counts_at_its_end(fields: dict[str, Any]) -> None:
    driver = RecordingDriver(**fields)
    serve(driver, A, session_id="s")
    last = driver.submit(B, session_id="s")
    hint(driver, "s", Retention(kind=RetentionKind.KEEP, seconds=60.0))
    driver.abort(last)
    driver.run()

    assert not driver.core._life.retention._pending
    assert len(driver.core.stats()["l1_kept"]) == driver.settings.prefix_caching


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_hint_of_no_time_is_none(seconds: float) -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="a")
    driver.ends.clear()
    for kind in (RetentionKind.KEEP, RetentionKind.RESUME):
        hint(driver, "a", Retention(kind=kind, seconds=seconds))
    assert not driver.ends
    assert driver.core.stats()["retention_hints"] == 0


def test_the_first_hint_counts_at_its_own_time() -> None:
    driver = RecordingDriver()
    serve(driver, A, session_id="a")
    driver.wait(100.0)
    serve(driver, B, session_id="b")
    driver.wait(100.0)
    # It comes back sooner than the other has rested, of which nothing is known.
    hint(driver, "a", Retention(kind=RetentionKind.RESUME, seconds=50.0))
    evict(driver, 2)
    assert (num_cached(driver, A), num_cached(driver, B)) == (2, 0)
