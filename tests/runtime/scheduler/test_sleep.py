"""What a core does that is told to sleep: whom it answers first, and what it has given back."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import pytest

from raydix.ids import ClientId, RequestId
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FailureKind, PrefetchPrompt
from raydix.runtime.messages.host import CopiesDrained, Lookup
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.events import Effect, FallAsleep, GiveBack, PhaseReached
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.scheduler.request.request import RequestState
from tests.runtime.scheduler.core_driver import BASE, CLIENT, CoreDriver

PAGES_ALONE, ALL = FallAsleep(with_weights=False), FallAsleep(with_weights=True)
GAVE_BACK = events.RanksGaveBack()


class SleepyDriver(CoreDriver):
    """Keeps, besides, how many pages were lost with each order to give memory back."""

    def __init__(self) -> None:
        super().__init__(has_host_memory=True, write_policy=WritePolicy.WRITE_BACK)
        self.num_lost: list[int] = []
        handle = self.core.handle

        def handle_and_note(event: events.Event, now_s: float) -> list[Effect]:
            effects = handle(event, now_s)
            self.num_lost += [each.num_lost_pages for each in effects if isinstance(each, GiveBack)]
            return effects

        self.core.handle = handle_and_note  # type: ignore[method-assign]


def orders(effects: Iterable[Effect]) -> list[bool]:
    """Whether weights go, of each order to give memory back."""
    return [effect.with_weights for effect in effects if isinstance(effect, GiveBack)]


def phases(effects: Iterable[Effect]) -> list[Phase]:
    return [effect.phase for effect in effects if isinstance(effect, PhaseReached)]


def core_that_sleeps() -> SchedulerCore:
    """One that has given its pages back alone."""
    core = SchedulerCore(BASE, Phase.ASLEEP)
    core.handle(events.WakeUp(), 0.0)
    assert orders(core.handle(PAGES_ALONE, 0.0)) == [False]
    assert phases(core.handle(GAVE_BACK, 0.0)) == [Phase.ASLEEP]
    return core


def test_weights_of_an_engine_that_sleeps_go_once_they_are_to() -> None:
    core = core_that_sleeps()
    effects = core.handle(ALL, 0.0)
    assert (orders(effects), phases(effects)) == ([True], [])
    assert phases(core.handle(GAVE_BACK, 0.0)) == [Phase.ASLEEP]

    for order in (ALL, PAGES_ALONE):
        effects = core.handle(order, 0.0)
        assert (orders(effects), phases(effects)) == ([], [Phase.ASLEEP])


def test_weights_go_that_are_asked_for_while_pages_are_given_back() -> None:
    core = SchedulerCore(BASE, Phase.ASLEEP)
    core.handle(events.WakeUp(), 0.0)
    core.handle(PAGES_ALONE, 0.0)
    assert orders(core.handle(ALL, 0.0)) == []
    effects = core.handle(GAVE_BACK, 0.0)
    assert (orders(effects), phases(effects)) == ([True], [])
    assert phases(core.handle(GAVE_BACK, 0.0)) == [Phase.ASLEEP]


def test_the_next_sleep_may_keep_the_weights_again() -> None:
    core = core_that_sleeps()
    core.handle(ALL, 0.0)
    core.handle(GAVE_BACK, 0.0)
    core.handle(events.WakeUp(), 0.0)
    assert orders(core.handle(PAGES_ALONE, 0.0)) == [False]


def test_a_request_whose_rank_is_lost_while_others_end_is_answered_before_the_sleep() -> None:
    driver = CoreDriver(max_asleep_wait_s=0.0)
    driver.submit(list(range(20)), max_tokens=6, name="first")
    driver.step()
    driver.send(PAGES_ALONE)
    driver.submit(list(range(20)), max_tokens=6, name="late")
    assert driver.answers["late"].ending == "EngineAsleep"

    driver.lose_rank(0)
    driver.wait(1.0)
    assert driver.core.phase is Phase.DRAINING
    driver.attach_rank(0, incarnation=2)
    driver.run()

    assert driver.answers["first"].ending == "length"
    assert len(driver.answers["first"].tokens) == 6
    assert driver.core.phase is Phase.GIVING_BACK


def driver_that_backs_up() -> SleepyDriver:
    """L2 lacks five pages of L1, and has died in the midst of their copy."""
    driver = SleepyDriver()
    driver.submit(list(range(20)), max_tokens=1)
    driver.run()
    driver.send(PAGES_ALONE)
    driver.lose_host()
    driver.finish_copies()
    assert driver.core.phase is Phase.BACKING_UP
    return driver


def test_the_next_host_memory_gets_what_the_last_one_was_to_get() -> None:
    driver = driver_that_backs_up()
    driver.wait(5.0)
    driver.attach_host()
    driver.host_turn()
    driver.run()
    assert (driver.core.phase, driver.num_lost) == (Phase.GIVING_BACK, [0])


@pytest.mark.parametrize("is_copying", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_host_memory_that_is_replaced_at_once_gets_what_the_last_one_was_to_get(
    is_copying: bool, is_told: bool
) -> None:
    driver = SleepyDriver()
    driver.submit(list(range(20)), max_tokens=1)
    driver.run()
    if not is_copying:
        # It has no free page.
        driver.core._source.view.take_pages(0, 64)
    driver.send(PAGES_ALONE)
    driver._host.clear()
    driver.to_host.clear()
    if is_told:
        driver.core.hear(events.HostLost(connection=driver.host_connection), driver.now_s)
    driver.attach_host()
    driver.run()
    assert (driver.core.phase, driver.num_lost) == (Phase.GIVING_BACK, [0])
    assert all(driver.in_l2(0, driver.keys(list(range(20)))))


def test_a_host_memory_that_stays_away_is_not_waited_for_and_what_is_lost_is_told() -> None:
    driver = driver_that_backs_up()
    driver.wait(11.0)
    driver.run()
    assert (driver.core.phase, driver.num_lost) == (Phase.GIVING_BACK, [5])
    driver.attach_host()
    driver.host_turn()
    assert not driver.plans[0], "its ranks are about to hang up"


def test_requests_that_go_on_for_too_long_are_parked_and_go_on_after_the_wake() -> None:
    driver = CoreDriver(max_asleep_wait_s=5.0, max_drain_s=2.0)
    for name in ("running", "waiting"):
        driver.submit(list(range(20)), max_tokens=9, name=name)
    driver.step()
    driver.step()
    driver.send(PAGES_ALONE)
    driver.wait(1.9)
    assert driver.core.phase is Phase.DRAINING
    driver.submit(list(range(20)), max_tokens=9, name="late")

    driver.wait(0.2)
    driver.run()
    assert driver.core.phase is Phase.GIVING_BACK
    driver.core.check()
    driver.lose_rank(0)
    driver.send(GAVE_BACK)
    driver.wait(100.0)
    # Those that came before wait on, as they were taken in.
    endings = {name: each.ending for name, each in driver.answers.items() if each.ending}
    assert endings == {"late": "EngineAsleep"}

    driver.send(events.WakeUp())
    driver.attach_rank(0, incarnation=2)
    driver.run()
    for name in ("running", "waiting"):
        assert driver.answers[name].ending == "length"
        assert len(driver.answers[name].tokens) == 9


def test_a_wake_while_requests_are_parked_lets_them_go_on_at_once() -> None:
    driver = CoreDriver(max_drain_s=0.0)
    driver.submit(list(range(20)), max_tokens=9, name="parked")
    driver.step()
    driver.send(PAGES_ALONE)
    driver.send(events.WakeUp())
    driver.run()
    assert driver.core.phase is Phase.AWAKE
    assert driver.answers["parked"].ending == "length"


def test_thousands_that_wait_for_the_wake_make_no_event_dearer() -> None:
    calls = [_calls_of_a_tick(num_waiting) for num_waiting in (20, 2000)]
    assert calls[0] == calls[1]


def _calls_of_a_tick(num_waiting: int) -> int:
    """How often anything is called, or a generator goes on, for a tick of an engine asleep."""
    driver = CoreDriver(max_waiting_requests=4096)
    driver.send(PAGES_ALONE)
    for _ in range(num_waiting):
        driver.submit([1, 2, 3])
    driver.send_tick()

    counted: list[str] = []
    sys.setprofile(lambda frame, event, argument: counted.append(event))
    driver.core.handle(events.Tick(), driver.now_s)
    sys.setprofile(None)
    return counted.count("call") + counted.count("c_call")


class NotedRequests(dict[RequestId, RequestState]):
    """Requests of which it is noted how many are looked at."""

    num_looks = 0

    def values(self) -> Iterator[RequestState]:  # type: ignore[override]
        for request in super().values():
            self.num_looks += 1
            yield request


def test_thousands_that_wait_for_the_wake_are_not_looked_at_while_others_are_answered() -> None:
    driver = CoreDriver(max_waiting_requests=4096, max_asleep_wait_s=100.0)
    driver.submit(list(range(20)), max_tokens=9)
    driver.step()
    driver.send(PAGES_ALONE)
    for _ in range(100):
        driver.submit([1, 2, 3])
    requests = driver.core._requests
    requests.unplaced = noted = NotedRequests(requests.unplaced)

    driver.core.handle(events.Tick(), driver.now_s)

    assert (driver.core.phase, len(noted)) == (Phase.DRAINING, 100)
    assert noted.num_looks < 10


def driver_asleep(*, max_asleep_wait_s: float = 30.0, names: Sequence[str] = ()) -> CoreDriver:
    """A core whose engine sleeps; the named requests wait in the midst of their outputs."""
    driver = CoreDriver(has_host_memory=True, max_drain_s=0.0, max_asleep_wait_s=max_asleep_wait_s)
    for name in names:
        driver.submit(list(range(20)), max_tokens=9, name=name, client="former link")
    if names:
        driver.host_turn()
        driver.step()
        driver.step()
    driver.send(PAGES_ALONE)
    driver.run()
    driver.lose_rank(0)
    driver.send(GAVE_BACK)
    assert driver.core.phase is Phase.ASLEEP
    return driver


def test_the_next_host_memory_need_not_wait_for_the_wake_of_an_engine_that_sleeps() -> None:
    driver = driver_asleep()
    driver.lose_host()
    driver.attach_host()
    driver.wait(1.0)
    assert CopiesDrained in [type(message) for message in driver.host_turn()]


@pytest.mark.parametrize("max_asleep_wait_s", [0.0, 5.0])
def test_a_parked_output_that_is_asked_for_again_waits_for_the_wake(
    max_asleep_wait_s: float,
) -> None:
    driver = driver_asleep(max_asleep_wait_s=max_asleep_wait_s, names=["x"])
    known = driver.answers["x"].tokens
    driver.send(events.ClientGone(client_id=ClientId("former link")))
    driver.submit(list(range(20)), max_tokens=9, name="x", known_output=int32_array(known))
    driver.submit(list(range(20)), max_tokens=9, name="new")
    driver.wait(6.0)
    assert driver.answers["x"].ending is None
    assert driver.answers["new"].ending == FailureKind.ASLEEP.value


def test_a_prefetch_does_not_wait_for_those_that_wait_for_the_wake() -> None:
    driver = driver_asleep(names=["x"])
    driver.to_host.clear()
    prefetch = PrefetchPrompt(
        asking=driver.new_asking("p"),
        request_id=RequestId("p"),
        token_ids=int32_array(range(300, 340)),
    )
    driver.send(events.ClientMessage(client_id=CLIENT, message=prefetch))
    driver.wait(1.0)
    assert Lookup in [type(message) for message in driver.to_host]


def test_what_is_asked_again_without_a_token_waits_as_long_as_new_requests() -> None:
    driver = driver_asleep(max_asleep_wait_s=5.0)
    driver.submit(list(range(20)), max_tokens=9, name="x", known_output=int32_array([]))
    driver.wait(6.0)
    assert driver.answers["x"].ending == FailureKind.ASLEEP.value
