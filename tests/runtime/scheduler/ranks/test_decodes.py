"""Requests that decode in columns: tokens, endings and pages as one by one, at hardly any cost."""

import random
from typing import Any

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.ranks.decodes import DecodeBatch
from tests.runtime.scheduler.core_driver import CoreDriver


def batch_of(driver: CoreDriver) -> DecodeBatch:
    return driver.core._lanes[0].batch


def test_request_joins_with_its_first_token_and_leaves_with_its_last() -> None:
    driver = CoreDriver()
    name = driver.submit([1, 2, 3], max_tokens=5)
    assert len(batch_of(driver)) == 0
    driver.step()
    assert len(batch_of(driver)) == 1
    driver.run()
    assert len(batch_of(driver)) == 0
    assert driver.answers[name].tokens == [1] * 5
    assert driver.answers[name].ending == "length"


def test_request_that_wants_logprobs_stays_out() -> None:
    driver = CoreDriver()
    driver.submit([1, 2, 3], max_tokens=5, sampling=DeviceSampling(seed=0, num_logprobs=0))
    driver.step()
    driver.step()
    assert len(batch_of(driver)) == 0


def test_row_of_an_ended_request_is_not_taken_for_the_next_one_in_its_slot() -> None:
    driver = CoreDriver(max_running_requests=1)
    first = driver.submit([1, 2, 3], max_tokens=20)
    driver.step()
    driver.step()
    driver.abort(first)
    second = driver.submit([4, 5, 6], max_tokens=4)
    driver.step(token=99)  # a row of the first, planned before its end
    driver.run()
    assert driver.answers[second].tokens == [1] * 4


@pytest.mark.parametrize("min_tokens", [0, 3])
def test_stop_token_ends_a_request_but_not_before_its_minimum(min_tokens: int) -> None:
    driver = CoreDriver()
    sampling = DeviceSampling(seed=0, min_tokens=min_tokens)
    name = driver.submit([1, 2, 3], max_tokens=9, stop_token_ids=(7, 8), sampling=sampling)
    other = driver.submit([1, 2, 3, 4], max_tokens=9)
    driver.step(token=1)
    while driver.plans[0]:
        driver.step(token=8)
    assert driver.answers[name].tokens == [1, *[8] * max(1, min_tokens - 1)]
    assert driver.answers[name].ending == "stop"
    assert driver.answers[other].ending == "length"


def test_tokens_go_to_the_client_that_asked() -> None:
    driver = CoreDriver()
    for index in range(4):
        driver.submit([index, 2, 3], max_tokens=4, client="ab"[index % 2])
    heard: dict[str, list[int]] = {"a": [], "b": []}
    handle = driver.core.handle

    def spy(event: events.Event, now_s: float) -> list[events.Effect]:
        effects = handle(event, now_s)
        for effect in effects:
            if isinstance(effect, events.SendTokens):
                heard[effect.client_id] += effect.askings.tolist()
        return effects

    driver.core.handle = spy  # type: ignore[method-assign]
    driver.run()
    assert set(heard["a"]) == {1, 3}
    assert set(heard["b"]) == {2, 4}


def test_clients_that_are_gone_are_forgotten_while_others_decode() -> None:
    driver = CoreDriver(max_running_requests=2)
    driver.submit([1, 2, 3], max_tokens=97, client="stays")
    heard: list[tuple[str, int]] = []
    handle = driver.core.handle

    def spy(event: events.Event, now_s: float) -> list[events.Effect]:
        effects = handle(event, now_s)
        for effect in effects:
            if isinstance(effect, events.SendTokens):
                heard.extend((effect.client_id, asking) for asking in effect.askings.tolist())
        return effects

    driver.core.handle = spy  # type: ignore[method-assign]
    for number in range(16):
        driver.submit([number, 2, 3], max_tokens=3, client=f"client {number}")
        for _ in range(5):
            driver.step()

    assert len(batch_of(driver)) == 1, "one of them has decoded all the time"
    assert len(batch_of(driver)._clients) <= 6
    assert {asking for client, asking in heard if client == "stays"} == {1}
    others = {asking: client for client, asking in heard if client != "stays"}
    assert others == {number + 2: f"client {number}" for number in range(16)}


def test_pages_of_decoded_tokens_are_published_as_they_fill() -> None:
    driver = CoreDriver()
    driver.submit([1, 2, 3], max_tokens=14, name="first")
    driver.run()
    follow_up = driver.submit([1, 2, 3, *[1] * 13], max_tokens=1)
    driver.run()
    assert driver.answers[follow_up].sources == {"l1": 15, "computed:last_token": 1}


def _random_run(seed: int, **changes: Any) -> CoreDriver:
    draw = random.Random(seed)
    driver = CoreDriver(
        num_pages=(draw.choice([20, 40]),), max_running_requests=draw.choice([2, 8]), **changes
    )

    def token_of(name: str, position: int) -> int:
        return (7 * position + len(name)) % 5

    driver.token_of = token_of  # type: ignore[method-assign]
    for index in range(12):
        prompt = [draw.randrange(3) for _ in range(draw.randrange(1, 20))]
        sampling = DeviceSampling(seed=0, num_logprobs=0 if draw.random() < 0.2 else None)
        name = f"{'r' * (index % 3)}{index}"
        driver.submit(prompt, max_tokens=draw.randrange(1, 25), name=name, sampling=sampling)
        for _ in range(draw.randrange(4)):
            if driver.plans[0]:
                driver.step()
        if draw.random() < 0.2 and driver.answers.get(name, None) is None:
            driver.abort(name)
    driver.run()
    return driver


@pytest.mark.parametrize("seed", range(30))
def test_random_requests_get_exactly_their_tokens(seed: int) -> None:
    driver = _random_run(seed)
    for name, answer in driver.answers.items():
        expected = [(7 * position + len(name)) % 5 for position in range(len(answer.tokens))]
        assert answer.tokens == expected
        assert answer.ending in ("length", "abort")
    assert driver.core.is_idle


def test_check_finds_a_table_that_disagrees() -> None:
    driver = CoreDriver()
    driver.submit([1, 2, 3], max_tokens=5)
    driver.step()
    batch = batch_of(driver)
    batch._num_paged += np.int32(1)
    with pytest.raises(AccountingError, match="room"):
        batch.check()


def test_rows_that_were_done_before_their_load_are_taken_in_order_once_it_is() -> None:
    driver = CoreDriver(has_host_memory=True, start_load_bytes_per_s=1e18)
    prompt = list(range(17))
    driver.fill_l2(prompt)
    name = driver.submit(prompt, max_tokens=6)
    driver.host_turn()
    driver.step()  # starts the load
    for token in (11, 12, 13):  # nobody has heard of the load's end
        assert driver.rows(driver.step(token=token)) == {name: 1}
    assert name not in driver.answers or not driver.answers[name].tokens
    driver.finish_copies()
    assert driver.answers[name].tokens == [11, 12, 13]
    driver.run()
    assert driver.answers[name].tokens == [11, 12, 13, 1, 1, 1]


def test_a_request_whose_last_prompt_page_was_there_decodes_from_the_one_that_is_kept() -> None:
    driver = CoreDriver()
    writer = driver.submit([1, 2, 3, 4], max_tokens=12)
    driver.step()
    while len(driver.answers[writer].tokens) < 3:
        driver.step()

    # The step that fills the writer's page is in flight. The reader computes the same page behind
    # it.
    reader = driver.submit([1, 2, 3, 4, 1, 1, 1, 1], max_tokens=3)
    tables: dict[str, dict[int, int]] = {}
    while reader not in driver.answers or not driver.answers[reader].tokens:
        note_tables(driver, tables)
        driver.step()
    note_tables(driver, tables)

    request = driver.core._requests.living[RequestId(reader)]
    assert request.is_decoding
    assert list(tables[reader].values()) == request.table.pages(0)[0].tolist()


def test_many_stop_ids_of_one_request_cost_the_others_nothing() -> None:
    driver = CoreDriver()
    many = driver.submit([1, 2, 3], max_tokens=9, stop_token_ids=tuple(range(5, 5000)))
    other = driver.submit([4, 5, 6], max_tokens=9, stop_token_ids=(7,))
    for _ in range(3):
        driver.step(token=1)
    assert batch_of(driver)._stop_ids.shape[1] <= 16

    driver.step(token=4999)
    assert driver.answers[many].ending == "stop"
    driver.run()
    assert driver.answers[other].ending == "length"

    # Who has the slot next stops at none of them.
    heir = driver.submit([1, 2, 3], max_tokens=3)
    for _ in range(3):
        driver.step(token=4999)
    assert driver.answers[heir].tokens == [4999] * 3


def note_tables(driver: CoreDriver, tables: dict[str, dict[int, int]]) -> None:
    """What the device will know of block tables once it has all plans."""
    for plan in driver.plans[0]:
        for changes in plan.tables:
            pages = iter(changes.page_ids.tolist())
            columns = zip(
                changes.slots.tolist(),
                changes.starts.tolist(),
                changes.counts.tolist(),
                strict=True,
            )
            for slot, start, count in columns:
                table = tables.setdefault(driver._names[0][slot], {})
                table.update({start + index: next(pages) for index in range(count)})
