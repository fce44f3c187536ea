"""The order of waiting requests, and when each of them is looked at again."""

import random
from dataclasses import replace

import pytest

from raydix.errors import AccountingError
from raydix.ids import AskingId, ClientId, PageKey, RequestId
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import order_key
from tests.runtime.scheduler.core_driver import BASE, CoreDriver

FCFS = replace(BASE, policy=SchedulingPolicy.FCFS)
LPM = replace(BASE, policy=SchedulingPolicy.LPM)
SHORTEST = replace(BASE, policy=SchedulingPolicy.SHORTEST_PREFILL)


def request(serial: int, *, arrival_s: float = 0.0, priority: int = 0) -> RequestState:
    """One that waits."""
    submit = SubmitRequest(
        asking=AskingId(serial),
        request_id=RequestId(f"r{serial}"),
        token_ids=int32_array([serial] * 8),
        sampling=DeviceSampling(seed=0),
        max_tokens=1,
        priority=priority,
    )
    return RequestState(
        submit, ClientId("c"), serial=serial, max_tokens=1, page_size=4, now_s=arrival_s
    )


def key_of(number: int) -> PageKey:
    """The key of some page."""
    return PageKey(number.to_bytes(32, "big")[::-1])


def test_fcfs_orders_by_arrival_alone() -> None:
    early, late = request(1, arrival_s=0.1), request(2, arrival_s=0.2)
    assert order_key(early, FCFS, 0) < order_key(late, FCFS, 100)


def test_lpm_orders_by_cached_pages_then_by_arrival() -> None:
    early, late = request(1, arrival_s=0.05), request(2, arrival_s=0.1)
    assert order_key(late, LPM, 2) < order_key(early, LPM, 1)
    assert order_key(early, LPM, 2) < order_key(late, LPM, 2)


def test_lpm_lets_nobody_be_overtaken_by_those_who_come_a_second_later() -> None:
    early, late = request(1, arrival_s=0.1), request(2, arrival_s=1.1)
    assert order_key(early, LPM, 0) < order_key(late, LPM, 100)


@pytest.mark.parametrize("settings", [FCFS, LPM, SHORTEST])
def test_priority_goes_before_the_policy(settings: object) -> None:
    urgent, other = request(1, arrival_s=5.0, priority=-1), request(2, arrival_s=0.0)
    assert order_key(urgent, settings, 0) < order_key(other, settings, 50)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [FCFS, LPM, SHORTEST])
def test_nobody_is_overtaken_by_those_who_come_a_priority_times_ageing_later(
    settings: object,
) -> None:
    patient = request(1, arrival_s=3.0, priority=2)
    newcomer = request(2, arrival_s=3.0 + 3 * BASE.ageing_s, priority=0)
    late = order_key(newcomer, settings, 1000)  # type: ignore[arg-type]
    assert order_key(patient, settings, 0) < late  # type: ignore[arg-type]


def test_equal_requests_keep_their_order_of_arrival() -> None:
    queue = WaitingQueue(LPM)
    requests = [request(serial) for serial in range(20)]
    for each in requests:
        queue.add(each, num_cached_pages=0, lacks=None)
    seen = []
    while (first := queue.next_turn(0.0)) is not None:
        seen.append(first)
        queue.discard(first)
    assert seen == requests


def test_parked_request_comes_back_when_the_page_that_it_lacks_has_come() -> None:
    queue = WaitingQueue(LPM)
    parked, other = request(1), request(2)
    for each in (parked, other):
        queue.add(each, num_cached_pages=0, lacks=None)
    queue.park(parked, lacks=key_of(7))
    assert queue.next_turn(0.0) is other
    queue.pages_came([key_of(8)])
    queue.wake_some()
    assert queue.next_turn(0.0) is other
    queue.pages_came([key_of(7)[:16]])
    queue.wake_some()
    assert queue.next_turn(0.0) is parked
    assert queue.take_grown() is parked
    assert queue.take_grown() is None


def test_follower_comes_back_when_its_leader_stops() -> None:
    queue = WaitingQueue(FCFS)
    follower = request(1)
    queue.add(follower, num_cached_pages=0, lacks=None)
    queue.park(follower, lacks=key_of(7), leader=RequestId("leader"))
    queue.leader_stopped(RequestId("other"))
    queue.wake_some()
    assert queue.next_turn(0.0) is None
    queue.leader_stopped(RequestId("leader"))
    queue.wake_some()
    assert queue.next_turn(0.0) is follower
    queue.check([])


def test_no_event_wakes_all_that_follow_one_who_stops() -> None:
    queue = WaitingQueue(FCFS)
    followers = [request(serial) for serial in range(1000)]
    for each in followers:
        queue.add(each, num_cached_pages=0, lacks=None)
        queue.park(each, lacks=key_of(7), leader=RequestId("leader"))
    queue.pages_came([key_of(7)])
    queue.leader_stopped(RequestId("leader"))
    assert queue.next_turn(0.0) is None, "they are woken piece by piece"
    queue.discard(followers[0])
    while queue.wake_some():
        queue.check([])
    for each in followers[1:]:
        assert queue.next_turn(0.0) is each
        queue.discard(each)
    queue.check([])


def test_request_that_left_the_queue_is_not_woken() -> None:
    queue = WaitingQueue(LPM)
    gone = request(1)
    queue.add(gone, num_cached_pages=0, lacks=key_of(7))
    queue.park(gone, lacks=key_of(7), leader=RequestId("leader"))
    queue.discard(gone)
    queue.discard(gone)
    queue.pages_came([key_of(7)])
    queue.wake_some()
    queue.leader_stopped(RequestId("leader"))
    queue.wake_some()
    queue.wake(gone)
    assert queue.next_turn(0.0) is None
    assert not len(queue)
    assert not queue.num_tokens
    queue.check([])


def test_random_use_agrees_with_a_sorted_list() -> None:
    draw = random.Random(0)
    queue = WaitingQueue(LPM)
    present: dict[int, tuple[RequestState, int]] = {}
    parked: set[int] = set()
    for step in range(3000):
        action = draw.choice(["add", "add", "discard", "place", "park", "wake"])
        serial = draw.choice(list(present)) if present else -1
        if action == "add":
            new = request(step, arrival_s=draw.uniform(0, 50), priority=draw.randrange(-1, 2))
            present[step] = (new, draw.randrange(4))
            queue.add(new, num_cached_pages=present[step][1], lacks=key_of(draw.randrange(5)))
        elif serial < 0:
            continue
        elif action == "discard":
            queue.discard(present.pop(serial)[0])
            parked.discard(serial)
        elif action == "place":
            present[serial] = (present[serial][0], draw.randrange(4))
            queue.place(present[serial][0], num_cached_pages=present[serial][1], lacks=None)
        elif action == "park":
            queue.park(present[serial][0], lacks=None)
            parked.add(serial)
        else:
            queue.wake(present[serial][0])
            parked.discard(serial)
        ready = [entry for number, entry in present.items() if number not in parked]
        expected = min(
            ready, key=lambda entry: order_key(entry[0], LPM, entry[1]), default=(None, 0)
        )[0]
        assert queue.next_turn(0.0) is expected
        queue.check([])


def test_check_finds_a_turn_of_a_request_that_does_not_wait() -> None:
    queue = WaitingQueue(FCFS)
    queue.add(request(1), num_cached_pages=0, lacks=None)
    queue.requests.clear()
    with pytest.raises(AccountingError):
        queue.check([])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SchedulingPolicy.FCFS, ["cold", "hot"]),
        (SchedulingPolicy.LPM, ["hot", "cold"]),
        (SchedulingPolicy.SHORTEST_PREFILL, ["hot", "cold"]),
        (SchedulingPolicy.HRRN, ["hot", "cold"]),
        (SchedulingPolicy.DFS_WEIGHT, ["cold", "hot"]),
    ],
)
def test_each_policy_admits_in_its_order(policy: SchedulingPolicy, expected: list[str]) -> None:
    driver = CoreDriver(policy=policy, max_running_requests=1)
    hot = list(range(12))
    driver.submit(hot, max_tokens=1)
    driver.run()
    driver.submit([50, 51, 52], max_tokens=1, name="blocks the only slot")
    driver.submit(list(range(100, 112)), max_tokens=1, name="cold")
    driver.submit([*hot, 99], max_tokens=1, name="hot")
    driver.run()
    order = [name for name in driver.endings if name in expected]
    assert order == expected


def test_dfs_weight_admits_those_who_begin_alike_one_after_the_other() -> None:
    driver = CoreDriver(policy=SchedulingPolicy.DFS_WEIGHT, max_running_requests=1)
    driver.submit([50, 51, 52], max_tokens=1, name="blocks the only slot")
    driver.submit(list(range(100, 112)), max_tokens=1, name="lone")
    for name in ("one", "two", "three"):
        driver.submit([*range(12), ord(name[0])], max_tokens=1, name=name)
    driver.run()
    # When one is left, nobody shares its prefix any more.
    assert driver.endings[1:] == ["one", "two", "lone", "three"]


@pytest.mark.parametrize(
    "policy", [SchedulingPolicy.LPM, SchedulingPolicy.SHORTEST_PREFILL, SchedulingPolicy.HRRN]
)
def test_match_that_grows_while_it_waits_moves_a_request_forward(policy: SchedulingPolicy) -> None:
    driver = CoreDriver(policy=policy, max_running_requests=1)
    driver.submit(list(range(12)), max_tokens=1, name="first")
    driver.submit(list(range(100, 112)), max_tokens=1, name="cold")
    driver.submit([*range(12), 99], max_tokens=1, name="sharer")
    driver.run()
    assert driver.endings == ["first", "sharer", "cold"]
