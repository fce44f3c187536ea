"""HostMemory hears of ends and hints, and keeps within budgets."""

import pytest

from raydix.ids import PageKey, TenantId, UserId
from raydix.runtime.cache.host.events import Tick
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import EndUse
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.messages.tenants import tenant_label
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key, make_keys
from tests.runtime.cache.host.test_core import attached

A, B, TENANT = UserId(11), UserId(12), TenantId(1)
END = Retention(kind=RetentionKind.END)


def serve(host: HostScript, user: UserId, names: list[str], hint: Retention | None = None) -> None:
    """A request of a user looks its chain up, computes what is lacking, and ends."""
    host.now_s += 1.0
    host.lookup(names[-1], names, user=user)
    new = [name for name in names if make_key(name)[:16] not in host.mirror]
    host.commit(new)
    host.say(EndUse(user=user, tenant=TENANT, keys=make_keys(new), retention=hint))


def index_names(*names: str) -> list[tuple[int, PageKey]]:
    return [(0, PageKey(make_key(name))) for name in names]


def left_of(host: HostScript, names: list[str]) -> list[str]:
    return [name for name in names if make_key(name)[:16] in host.mirror]


def test_an_ended_session_makes_room_first_but_for_what_others_use() -> None:
    host = attached(16)
    serve(host, A, ["shared", "a1", "a2"])
    serve(host, B, ["shared", "b1", "b2"], END)
    for number in range(9):
        host.commit([f"x{number}"])
    assert left_of(host, ["b1", "b2"]) == []
    assert left_of(host, ["shared", "a1", "a2"]) == ["shared", "a1", "a2"]
    host.core.check()


def test_a_hint_by_itself_counts_for_what_its_user_has_left() -> None:
    host = attached(16)
    serve(host, B, ["b1", "b2"])
    serve(host, A, ["a1", "a2"])
    host.say(EndUse(user=A, tenant=TENANT, retention=END))
    for number in range(10):
        host.commit([f"x{number}"])
    assert left_of(host, ["a1", "a2"]) == []
    assert left_of(host, ["b1", "b2"]) == ["b1", "b2"]


def test_figures_say_who_keeps_how_much_within_the_budget() -> None:
    host = attached(16)
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    for user in range(1, 200):
        end = EndUse(
            user=UserId(user), tenant=TENANT, retention=keep, cache_salt="x", session_id=str(user)
        )
        serve(host, UserId(user), [f"{user}a", f"{user}b"])
        host.say(end)
        host.core.check()
    kept = host.core.stats()["l2_kept"]
    assert [each["session_id"] for each in kept] == ["198", "199"]
    assert sum(each["pages"] for each in kept) == 4, "a quarter of 16 pages"
    assert {each["tenant"] for each in kept} == {tenant_label("x")}


def test_the_next_request_of_a_session_ends_its_keep() -> None:
    host = attached(16)
    serve(host, A, ["a1", "a2"], Retention(kind=RetentionKind.KEEP, seconds=60.0))
    assert len(host.core.stats()["l2_kept"]) == 1
    serve(host, A, ["a1", "a2", "a3"])
    assert not host.core.stats()["l2_kept"]


@pytest.mark.parametrize(
    ("policy", "is_first"),
    [(EvictionPolicy.LRU, False), (EvictionPolicy.MRU, True), (EvictionPolicy.FILO, True)],
)
def test_what_is_kept_no_longer_goes_as_its_policy_says(
    policy: EvictionPolicy, is_first: bool
) -> None:
    host = HostScript(16, eviction=policy)
    host.attach_scheduler()
    serve(host, B, ["b1", "b2"])
    serve(host, A, ["a1", "a2"], Retention(kind=RetentionKind.KEEP, seconds=60.0))
    host.now_s += 61.0
    host.tell(Tick())
    index = host.core._index
    last, *_ = index.newest_first()
    assert (index.name(last) in index_names("b1", "b2")) is is_first


def test_what_a_session_shares_is_kept_no_longer_than_its_budget_allows() -> None:
    host = attached(16)
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    serve(host, B, ["shared", "b1"])
    serve(host, A, ["shared", "a1"], keep)
    serve(host, UserId(13), ["c1", "c2", "c3", "c4"], keep)
    assert [each["pages"] for each in host.core.stats()["l2_kept"]] == [4]
    host.core.check()


@pytest.mark.parametrize("ends_while_read", [False, True])
def test_pages_that_were_read_stay_their_sessions_own(ends_while_read: bool) -> None:
    host = attached(16)
    serve(host, B, ["b1", "b2"])
    serve(host, A, ["a1", "a2"])
    host.now_s += 1.0
    host.lookup("again", ["a1", "a2"], user=A)
    host.lease(7, ["a1", "a2"])
    end = EndUse(user=A, tenant=TENANT, retention=END)
    if ends_while_read:
        host.say(end)
    host.release(7)
    if not ends_while_read:
        host.say(end)
    for number in range(10):
        host.commit([f"x{number}"])
    assert left_of(host, ["a1", "a2"]) == []
    assert left_of(host, ["b1", "b2"]) == ["b1", "b2"]
    host.core.check()


def test_pages_of_a_session_that_goes_on_while_they_are_read_age_as_others() -> None:
    host = attached(16)
    serve(host, A, ["a1", "a2"])
    host.lookup("again", ["a1", "a2"], user=A)
    host.lease(7, ["a1", "a2"])
    host.say(EndUse(user=A, tenant=TENANT, retention=END))
    host.say(EndUse(user=A, tenant=TENANT))
    host.release(7)
    host.now_s += 1.0
    serve(host, B, ["b1", "b2"], END)
    for number in range(10):
        host.commit([f"x{number}"])
    assert left_of(host, ["a1", "a2"]) == ["a1", "a2"]


def with_storage() -> HostScript:
    """A HostMemory whose L3 has all that was committed."""
    host = HostScript(num_pages=16, storage=STORAGE)
    host.attach_scheduler()
    host.attach_storage(7)
    host.answer_all()
    return host


def said(host: HostScript) -> list[tuple[UserId, bytes, Retention | None]]:
    """What L3 was told of when objects are used again, since the last call."""
    hints = [(each.user, each.keys, each.retention) for each in host.object_hints]
    host.object_hints.clear()
    return hints


def test_l3_hears_whose_objects_go_first_the_last_of_a_chain_first() -> None:
    host = with_storage()
    serve(host, A, ["shared", "a1", "a2"])
    serve(host, B, ["shared", "b1", "b2"])
    host.answer_all()
    host.say(EndUse(user=B, tenant=TENANT, retention=END, session_id="b"))
    assert said(host) == [(B, b"", None), (B, make_keys(["b2", "b1"]), END)]
    host.say(EndUse(user=B, tenant=TENANT, session_id="b"))
    assert said(host) == [(B, b"", None)]


def test_l3_hears_of_a_hint_once_it_has_what_the_hint_concerns() -> None:
    host = with_storage()
    serve(host, A, ["a1", "a2"], END)
    said(host)
    host.answer_all()
    hints = said(host)
    assert all((user, retention) == (A, END) for user, _, retention in hints)
    assert b"".join(sorted(keys for _, keys, _ in hints)) == make_keys(["a1", "a2"])


def test_what_l2_keeps_no_longer_l3_does_not_keep_either() -> None:
    host = with_storage()
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    for user in (A, B):
        names = [f"{user}a", f"{user}b", f"{user}c"]
        serve(host, user, names)
        host.answer_all()
        host.say(EndUse(user=user, tenant=TENANT, retention=keep, session_id=str(user)))
    # The budget is a quarter of 16 pages: one session's.
    assert said(host)[-1] == (A, b"", None)
    host.lose_storage()
    host.say(EndUse(user=B, tenant=TENANT, retention=END, session_id="b"))
    assert said(host) == []


def test_a_session_that_has_ended_and_goes_on_is_in_use_again() -> None:
    host = attached(16)
    serve(host, A, ["a1", "a2"])
    host.say(EndUse(user=A, tenant=TENANT, retention=END))
    serve(host, B, ["b1", "b2"])
    host.now_s += 1.0
    host.lookup("again", ["a1", "a2"], user=A)
    host.lease(7, ["a1", "a2"])
    host.release(7)
    for number in range(10):
        host.commit([f"x{number}"])
    assert left_of(host, ["a1", "a2"]) == ["a1", "a2"]


def test_a_keep_that_is_given_up_takes_nothing_from_the_sessions_next_request() -> None:
    host = attached(16)
    keep = Retention(kind=RetentionKind.KEEP, seconds=60.0)
    serve(host, A, ["a1", "a2"], keep)
    host.now_s += 5.0
    serve(host, UserId(13), ["i1", "i2"])
    host.now_s += 1.0
    host.lookup("again", ["a1", "a2"], user=A)
    serve(host, B, ["b1", "b2", "b3"], keep)
    assert [each["pages"] for each in host.core.stats()["l2_kept"]] == [3], "A's was given up"
    for number in range(7):
        host.commit([f"x{number}"])
    assert left_of(host, ["a1", "a2"]) == ["a1", "a2"]
    assert left_of(host, ["i1", "i2"]) != ["i1", "i2"]
