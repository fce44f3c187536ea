"""A recording has each request once, in hashes that say which blocks are equal and nothing else."""

from typing import Any

import pytest

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.recording import BLOCK_HASH_BYTES, RecordedRequest, RecordingPart
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life import recorder
from raydix.runtime.scheduler.life.recorder import PATIENCE_S
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

SALT = bytes(range(32))
PROMPT = list(range(1, 11))


class Recorded:
    """A driver whose core records."""

    def __init__(self, salt: bytes = SALT, block_tokens: int | None = None, **changes: Any) -> None:
        self.driver = CoreDriver(**changes)
        self.begun = self.order(
            events.BeginRecording(name="one", salt=salt, block_tokens=block_tokens)
        )

    def order(self, order: events.Event) -> events.RecordingTold:
        effects = self.driver.core.handle(order, self.driver.now_s)
        [told] = [each for each in effects if isinstance(each, events.RecordingTold)]
        return told

    def serve(self, tokens: list[int], **fields: Any) -> None:
        self.driver.submit(tokens, **{"max_tokens": 2, **fields})
        self.driver.run()

    def take(self) -> RecordingPart:
        return self.part_of(events.TakeRecording(name="one"))

    def end(self) -> RecordingPart:
        return self.part_of(events.EndRecording(name="one"))

    def part_of(self, order: events.Event) -> RecordingPart:
        part = self.order(order).part
        assert part is not None
        return part


def hashes(request: RecordedRequest) -> list[bytes]:
    return split(request.blocks)


def split(blocks: bytes) -> list[bytes]:
    width = BLOCK_HASH_BYTES
    return [blocks[at : at + width] for at in range(0, len(blocks), width)]


def record(salt: bytes = SALT, **fields: Any) -> RecordedRequest:
    recorded = Recorded(salt)
    recorded.serve(PROMPT, **fields)
    [request] = recorded.take().requests
    return request


def test_each_request_is_told_once_with_what_it_was() -> None:
    recorded = Recorded()
    recorded.driver.wait(3.0)
    hint = Retention(kind=RetentionKind.RESUME, seconds=4.0)
    recorded.serve(PROMPT, session_id="s", priority=7, retention=hint)
    [request] = recorded.take().requests
    assert request.arrival_s == pytest.approx(3.0, abs=1e-3)
    assert request.end_s >= request.arrival_s
    assert (request.num_prompt_tokens, request.num_answer_tokens) == (10, 2)
    assert (request.priority, request.retention) == (7, hint)
    assert len(hashes(request)) == 3, "two pages of four tokens, and a part of one"
    assert recorded.take() == RecordingPart(block_tokens=4)


def test_equal_beginnings_have_equal_hashes_and_nothing_else_has() -> None:
    recorded = Recorded()
    for tokens in (PROMPT, [*PROMPT, 90], [*PROMPT[:5], 91, *PROMPT[6:]]):
        recorded.serve(tokens)
    recorded.serve(PROMPT, cache_salt="a")
    first, longer, other, salted = map(hashes, recorded.take().requests)
    assert first[:2] == longer[:2]
    assert first[2] != longer[2]
    assert other[0] == first[0]
    assert other[1] != first[1]
    assert not {*salted} & {*first}, "tenants share nothing"


@pytest.mark.parametrize("block_tokens", [4, 8])
def test_a_next_turn_has_the_blocks_of_the_answer_before(block_tokens: int) -> None:
    recorded = Recorded(block_tokens=block_tokens)
    asked = recorded.driver.submit(PROMPT, max_tokens=15)
    recorded.driver.run()
    whole = [*PROMPT, *recorded.driver.answers[asked].tokens]
    recorded.serve([*whole, 1, 2, 3])
    first, second = recorded.take().requests
    assert first.num_answer_tokens == 15
    num_whole = 24 // block_tokens
    before = hashes(first)[: len(PROMPT) // block_tokens]
    assert hashes(second)[:num_whole] == [*before, *split(first.answer_blocks)]


def test_an_answers_last_token_which_is_never_computed_is_in_no_block() -> None:
    recorded = Recorded()
    for num_answer in (1, 2, 3):
        recorded.serve(PROMPT, max_tokens=num_answer, cache_salt=str(num_answer))
    blocks = [split(each.answer_blocks) for each in recorded.take().requests]
    assert [*map(len, blocks)] == [0, 0, 1]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_an_aborted_answer_has_the_blocks_that_it_has_filled(prefix_caching: bool) -> None:
    # Requests hear of their tokens several at a time.
    recorded = Recorded(page_size=1, prefix_caching=prefix_caching)
    for num_steps in range(2, 20):
        asked = recorded.driver.submit(PROMPT, max_tokens=50, cache_salt=str(num_steps))
        for _ in range(num_steps):
            recorded.driver.step()
        recorded.driver.abort(asked)
        recorded.driver.run()
    told = recorded.take().requests
    assert len(told) == 18
    for each in told:
        num_computed = each.num_prompt_tokens + each.num_answer_tokens - 1
        assert len(split(each.answer_blocks)) == num_computed - 10


def test_a_recording_that_ends_has_all_of_the_answers_that_go_on() -> None:
    recorded = Recorded(page_size=1, prefix_caching=False)
    recorded.driver.submit(PROMPT, max_tokens=50)
    for _ in range(8):
        recorded.driver.step()
    [told] = recorded.end().requests
    num_computed = told.num_prompt_tokens + told.num_answer_tokens - 1
    assert len(split(told.answer_blocks)) == num_computed - 10 > 3


def test_neither_tokens_nor_keys_nor_names_are_told() -> None:
    keys = CoreDriver().keys(PROMPT)
    request = record(session_id="a name", cache_salt="tenant")
    told = request.blocks + request.answer_blocks + (request.session or b"")
    assert b"a name" not in told
    assert b"tenant" not in told
    assert len(keys) == 2 * KEY_BYTES
    assert not any(keys[at : at + 4] in told for at in range(len(keys) - 3))


def test_another_salt_has_other_hashes_of_all() -> None:
    one, other = record(session_id="s"), record(bytes(32), session_id="s")
    assert not {*hashes(one)} & {*hashes(other)}
    assert one.session != other.session


def test_a_session_is_of_its_tenant() -> None:
    recorded = Recorded()
    for salt, name in ((None, "s"), ("a", "s"), ("a", "s"), (None, "as"), ("", "s")):
        recorded.serve(PROMPT, session_id=name, cache_salt=salt)
    names = [each.session for each in recorded.take().requests]
    assert len({*names}) == 4
    assert names[1] == names[2]


def test_larger_blocks_stand_for_several_pages() -> None:
    recorded = Recorded(block_tokens=8)
    recorded.serve(list(range(1, 20)))
    [request] = recorded.take().requests
    assert len(hashes(request)) == 3, "two whole blocks and a rest"


@pytest.mark.parametrize("block_tokens", [0, -4, 6])
def test_blocks_that_are_no_pages_are_refused(block_tokens: int) -> None:
    refusal = Recorded(block_tokens=block_tokens).begun.refusal
    assert refusal is not None
    assert f"blocks have {block_tokens} tokens; expected a multiple" in refusal


def test_a_second_recording_is_refused_until_the_first_has_ended() -> None:
    recorded = Recorded()
    other = events.BeginRecording(name="two", salt=SALT, block_tokens=None)
    assert "somebody records this engine already" in str(recorded.order(other).refusal)
    recorded.end()
    assert recorded.order(other).refusal is None
    assert "there is no recording one" in str(
        recorded.order(events.TakeRecording(name="one")).refusal
    )


def test_a_recording_that_nobody_takes_ends_and_one_that_is_taken_goes_on() -> None:
    recorded = Recorded()
    for _ in range(3):
        recorded.driver.wait(0.6 * PATIENCE_S)
        recorded.take()
    recorded.driver.wait(1.1 * PATIENCE_S)
    recorded.serve(PROMPT)
    assert "nobody has taken" in str(recorded.order(events.TakeRecording(name="one")).refusal)
    assert not recorded.driver.core._life.recorder.is_running


def test_what_nobody_takes_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_BYTES", 700)
    recorded = Recorded()
    for _ in range(5):
        recorded.serve(PROMPT)
    part = recorded.take()
    assert (len(part.requests), part.num_dropped) == (3, 2)
    recorded.serve(PROMPT)
    assert len(recorded.take().requests) == 1, "there is room again"


def test_requests_that_were_there_before_are_left_out_and_those_that_run_are_told() -> None:
    recorded = Recorded()
    recorded.end()
    recorded.driver.submit(PROMPT, max_tokens=50)
    recorded.driver.step()
    recorded.driver.now_s += 1.0
    begin = events.BeginRecording(name="one", salt=SALT, block_tokens=None)
    assert recorded.order(begin).refusal is None
    recorded.driver.submit([*PROMPT, 5], max_tokens=50)
    recorded.driver.step()
    [request] = recorded.end().requests
    assert request.num_prompt_tokens == 11


def test_what_never_had_its_turn_is_counted_and_left_out() -> None:
    recorded = Recorded(max_running_requests=1)
    recorded.driver.submit(PROMPT, max_tokens=50)
    waiting = recorded.driver.submit(PROMPT, max_tokens=50)
    recorded.driver.abort(waiting)
    part = recorded.take()
    assert (part.requests, part.num_unserved) == ((), 1)


def test_a_hint_without_a_request_is_told_unless_it_is_unsound() -> None:
    recorded = Recorded()
    recorded.driver.wait(2.0)
    for seconds in (5.0, float("nan")):
        hint = Retention(kind=RetentionKind.KEEP, seconds=seconds)
        message = RetainSession(session_id="s", retention=hint)
        recorded.driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    [told] = recorded.take().hints
    assert told.time_s == pytest.approx(2.0)
    assert told.retention.seconds == 5.0


def test_nothing_is_kept_while_nobody_records() -> None:
    recorded = Recorded()
    recorded.end()
    recorded.serve(PROMPT)
    assert recorded.order(events.EndRecording(name="one")).refusal is not None
