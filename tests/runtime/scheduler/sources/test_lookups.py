"""The order in which lookups are sent, and the room in L2 that they claim."""

from raydix.ids import RequestId
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import order_key
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.sources.lookups import Lookups, Unanswered
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.queue.test_waiting import request

PATIENT = PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE)
L3, NO_ROOM, PENDING = PageSource.L3, PageSource.NO_HOST_PAGE, PageSource.PENDING


def pages(first: int, stop: int) -> list[bytes]:
    """Some pages, by number."""
    return [bytes([number]) * 16 for number in range(first, stop)]


def lookups_with(max_pages: int) -> Lookups:
    lookups = Lookups()
    lookups.set_room(max_pages)
    return lookups


def enqueue(lookups: Lookups, each: RequestState, wanted: list[bytes]) -> None:
    lookups.enqueue(each, wanted, order_key(each, BASE, 0))


def test_lookups_are_sent_in_order_while_their_pages_fit() -> None:
    lookups = lookups_with(10)
    first, second, third = request(1), request(2), request(3)
    for each, wanted in ((third, pages(20, 21)), (second, pages(10, 16)), (first, pages(0, 5))):
        enqueue(lookups, each, wanted)
    assert lookups.next_to_send() is first
    assert lookups.next_to_send() is None, "the second does not fit, and the third is not before it"
    lookups.end_claim(first)
    assert lookups.next_to_send() is second
    assert lookups.next_to_send() is third
    lookups.check({first.request_id, second.request_id, third.request_id})


def test_the_first_always_fits() -> None:
    lookups = lookups_with(2)
    enqueue(lookups, request(1), pages(0, 50))
    assert lookups.next_to_send() is not None


def test_pages_that_several_want_count_once() -> None:
    lookups = lookups_with(6)
    sharers = [request(serial) for serial in range(5)]
    for each in sharers:
        enqueue(lookups, each, pages(0, 6))
    assert [lookups.next_to_send() for _ in sharers] == sharers
    assert lookups.num_claimed_pages == 6
    for each in sharers[:4]:
        lookups.end_claim(each)
    assert lookups.num_claimed_pages == 6
    lookups.end_claim(sharers[4])
    assert lookups.num_claimed_pages == 0


def test_lookup_without_room_is_repeated_only_once_another_claim_has_ended() -> None:
    lookups = lookups_with(100)
    other, refused = request(1), request(2)
    enqueue(lookups, other, pages(0, 5))
    enqueue(lookups, refused, pages(10, 15))
    assert lookups.next_to_send() is other
    assert lookups.next_to_send() is refused
    assert lookups.enqueue_again(refused, pages(10, 15), order_key(refused, BASE, 0))
    assert lookups.next_to_send() is None
    lookups.end_claim(other)
    assert lookups.next_to_send() is refused
    assert not lookups.enqueue_again(refused, pages(10, 15), order_key(refused, BASE, 0)), (
        "nobody else holds room"
    )


def test_new_request_is_not_held_up_by_the_refusal_of_an_earlier_one_of_its_name() -> None:
    lookups = lookups_with(10)
    enqueue(lookups, request(1), pages(0, 6))
    former, later = request(2), request(2)
    lookups.next_to_send()
    enqueue(lookups, former, pages(10, 16))
    assert lookups.next_to_send() is None
    lookups.end_claim(former)
    enqueue(lookups, later, pages(20, 23))
    assert lookups.next_to_send() is later


def test_who_was_refused_goes_once_there_is_more_room() -> None:
    lookups = Lookups()
    first, second = request(1), request(2)
    enqueue(lookups, first, pages(0, 3))
    enqueue(lookups, second, pages(3, 6))
    assert lookups.next_to_send() is first
    assert lookups.next_to_send() is None
    lookups.set_room(6)
    assert lookups.next_to_send() is second


def test_clock_of_an_asking_starts_with_the_next_event() -> None:
    unanswered: Unanswered[int] = Unanswered()
    assert unanswered.oldest_s(9.0) is None
    unanswered.add(1)
    assert unanswered.note_overdue(0.0, 100.0) == []
    assert unanswered.oldest_s(9.0) == 9.0
    unanswered.start_clocks(10.0)
    unanswered.start_clocks(11.0)
    unanswered.add(2)
    unanswered.start_clocks(12.0)
    assert unanswered.oldest_s(12.5) == 10.0
    assert unanswered.note_overdue(1.0, 11.0) == [1]
    unanswered.discard(1)
    assert unanswered.note_overdue(1.0, 12.5) == []
    assert unanswered.oldest_s(12.5) == 12.0


def test_of_many_answers_that_are_owed_the_first_alone_has_a_timer() -> None:
    driver = CoreDriver(
        has_host_memory=True, prefetch=PATIENT, lookup_deadline_s=0.05, num_pages=(400,)
    )
    source, timers = driver.core._source, driver.core._timers

    for number in range(50):
        driver.submit([number] * 9, max_tokens=1)

    assert source.num_unanswered == 50
    assert len(timers) == 1
    # The tick may come late, and others before it.
    driver.now_s += 0.06
    for _ in range(5):
        driver.send(events.FlushL1())
    assert len(timers) == 1
    driver.wait(0.2)
    assert driver.core.stats()["host_silences"] > 0
    assert not source.num_unanswered, "none is forgotten"


def driver_with(max_staged_pages: int) -> CoreDriver:
    return CoreDriver(
        has_host_memory=True,
        prefetch=PATIENT,
        lookup_deadline_s=1e9,
        num_pages=(200,),
        max_staged_pages=max_staged_pages,
    )


def lookups_of(driver: CoreDriver) -> list[str]:
    """The requests whose chains HostMemory was asked for since the last time, in order."""
    found = [
        driver.asker_of(message.lookup_id)
        for message in driver.to_host
        if isinstance(message, host.Lookup)
    ]
    driver.to_host.clear()
    return found


def prompt_of(number: int) -> list[int]:
    return [100 * number + position for position in range(17)]


def test_deep_queue_is_looked_up_as_room_comes_free() -> None:
    driver = driver_with(max_staged_pages=8)
    names = [driver.submit(prompt_of(number), max_tokens=1) for number in range(5)]
    assert lookups_of(driver) == names[:2]
    driver.report_lookup(names[0], [PageSource.NOT_FOUND] * 4)
    assert lookups_of(driver) == names[2:3], "what L3 does not have takes no room"
    driver.report_lookup(names[1], [L3] * 4)
    assert lookups_of(driver) == [], "what it brought waits in L2 to be loaded"


def test_request_that_found_no_room_asks_again_and_counts_what_came_before_as_l3() -> None:
    driver = driver_with(max_staged_pages=100)
    other, refused = (
        driver.submit(prompt_of(1), max_tokens=1),
        driver.submit(prompt_of(2), max_tokens=1),
    )
    driver.to_host.clear()
    driver.report_lookup(refused, [L3, L3, NO_ROOM, NO_ROOM])
    driver.fill_l2(prompt_of(2)[:8])
    assert driver.core.stats()["num_requests_waiting"] == 2
    assert lookups_of(driver) == []
    driver.report_lookup(other, [PageSource.NOT_FOUND] * 4)
    assert lookups_of(driver) == [refused]
    driver.fill_l2(prompt_of(2))
    driver.report_lookup(refused, [PageSource.L2, PageSource.L2, L3, L3])
    driver.run()

    assert driver.answers[refused].sources == {"l3": 16, "computed:partial_page": 1}
    assert driver.answers[other].ending == "length"


def test_request_that_asks_again_in_vain_counts_what_was_in_l2_as_l2() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        prefetch=PrefetchSettings(base_s=1.0, cap_at_recompute=False),
        lookup_deadline_s=1e9,
        num_pages=(200,),
    )
    driver.fill_l2(prompt_of(2)[:4])
    other, refused = (
        driver.submit(prompt_of(1), max_tokens=1),
        driver.submit(prompt_of(2), max_tokens=1),
    )
    driver.report_lookup(refused, [PageSource.L2, L3, NO_ROOM, NO_ROOM])
    driver.fill_l2(prompt_of(2)[:8])
    driver.to_host.clear()
    driver.report_lookup(other, [PageSource.NOT_FOUND] * 4)
    assert lookups_of(driver) == [refused]
    driver.wait(2.0)
    driver.run()
    assert driver.answers[refused].sources == {
        "l2": 4,
        "l3": 4,
        "computed:timed_out": 8,
        "computed:partial_page": 1,
    }


def test_request_alone_without_room_computes_what_is_missing() -> None:
    driver = driver_with(max_staged_pages=2)
    name = driver.submit(prompt_of(1), max_tokens=1)
    driver.to_host.clear()
    driver.report_lookup(name, [NO_ROOM] * 4)
    driver.run()
    assert driver.answers[name].sources == {"computed:no_host_page": 16, "computed:partial_page": 1}


def test_best_effort_does_not_wait_for_its_turn() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        prefetch=PrefetchSettings(strategy=PrefetchStrategy.BEST_EFFORT),
        max_staged_pages=4,
        num_pages=(200,),
        max_running_requests=8,
        prefill_budget_tokens=256,
    )
    names = [driver.submit(prompt_of(number), max_tokens=1) for number in range(4)]
    while driver.plans[0]:
        driver.step()
    assert all(driver.answers[name].ending == "length" for name in names)


def test_lost_host_memory_leaves_no_claim_and_nobody_waiting() -> None:
    driver = driver_with(max_staged_pages=4)
    names = [driver.submit(prompt_of(number), max_tokens=1) for number in range(4)]
    driver.lose_host()
    assert driver.core.stats()["l2_claimed_pages"] == 0
    driver.run()
    assert {driver.answers[name].ending for name in names} == {"length"}


def test_aborted_request_gives_its_turn_away() -> None:
    driver = driver_with(max_staged_pages=4)
    names = [driver.submit(prompt_of(number), max_tokens=1) for number in range(3)]
    assert lookups_of(driver) == names[:1]
    driver.abort(names[1])
    driver.abort(names[0])
    assert lookups_of(driver)[-1] == names[2]
    assert RequestId(names[2]) in driver.core._requests.living


def said_of(driver: CoreDriver, *kinds: type) -> list[type]:
    """Kinds of messages to HostMemory since the last time, in order."""
    found = [type(message) for message in driver.to_host if isinstance(message, kinds)]
    driver.to_host.clear()
    return found


def test_pages_that_l3_brought_are_leased_before_their_lookup_is_given_up() -> None:
    driver = driver_with(max_staged_pages=100)
    name = driver.submit(prompt_of(1), max_tokens=1)
    driver.report_lookup(name, [L3, PENDING, PENDING, PENDING])
    driver.to_host.clear()
    driver.fill_l2(prompt_of(1))  # the mirror shows the last page before its report comes
    assert said_of(driver, host.LeasePages, host.CancelLookup) == [
        host.LeasePages,
        host.CancelLookup,
    ]


def test_aborted_request_gives_up_what_its_finished_lookup_brought() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        prefetch=PATIENT,
        lookup_deadline_s=1e9,
        num_pages=(200,),
        max_running_requests=1,
    )
    driver.submit(prompt_of(9), max_tokens=80, name="keeps the only slot")
    driver.host_turn()
    driver.step()
    name = driver.submit(prompt_of(1), max_tokens=1)
    driver.report_lookup(name, [L3] * 4)
    driver.to_host.clear()
    driver.abort(name)

    assert said_of(driver, host.CancelLookup) == [host.CancelLookup]


def test_second_lookup_takes_over_what_the_first_brought() -> None:
    driver = driver_with(max_staged_pages=100)
    other, refused = (
        driver.submit(prompt_of(1), max_tokens=1),
        driver.submit(prompt_of(2), max_tokens=1),
    )
    first = driver.lookup_of(refused)
    driver.report_lookup(refused, [L3, L3, NO_ROOM, NO_ROOM])
    driver.to_host.clear()
    driver.report_lookup(other, [PageSource.NOT_FOUND] * 4)
    messages = [m for m in driver.to_host if isinstance(m, host.Lookup | host.CancelLookup)]
    assert [type(message) for message in messages] == [host.Lookup, host.CancelLookup]
    assert messages[0].lookup_id == driver.lookup_of(refused)
    assert messages[1].lookup_id == first
