"""What an engine that sleeps has left open goes on at another one, once that would be sooner."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from raydix.errors import EngineDead
from raydix.runtime.api import askings
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.silent_askings import LEAST_S, MAX_PREDICTIONS, SilentAskings
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    SubmitRequest,
)
from raydix.runtime.messages.line import Line
from tests.runtime.api.fake_engine import FakeLink, delta, failed
from tests.runtime.api.small_client import collect, turns
from tests.runtime.api.test_line_router import IDLE, PROMPT, Told

ASLEEP = replace(IDLE, is_asleep=True)
BUSY = replace(IDLE, busy_s=100.0)


@pytest.fixture
async def told(monkeypatch):
    """Engine a gets what is asked first; the clock of the client is the test's."""
    told = Told()
    monkeypatch.setattr(askings, "time", SimpleNamespace(monotonic=lambda: told.now_s))
    await told.tell("a", is_anew=True)
    await told.tell("b", is_anew=True, report=BUSY)
    yield told
    await told.client.close()


async def begin(told, name="r", params=None):
    task = asyncio.create_task(collect(told.client.generate(PROMPT, params, name)))
    await turns()
    return task


async def wait(told, seconds):
    """Time passes, in which both engines report."""
    told.now_s += seconds
    await told.tell("a", report=ASLEEP)
    await told.tell("b")


def asked(link: FakeLink) -> list[SubmitRequest]:
    return link.sent_of(SubmitRequest)


def ended(link: FakeLink) -> list[int]:
    return [each.asking for each in link.sent_of(AbortRequest)]


async def test_a_parked_stream_goes_on_at_an_engine_that_is_awake(told):
    task = await begin(told)
    [first] = asked(told.links["a"])
    told.links["a"].deliver(delta("r", [5]))
    await wait(told, 0.0)
    assert asked(told.links["b"]) == []

    await wait(told, LEAST_S)

    [rest] = asked(told.links["b"])
    assert rest.earlier_output.tolist() == [5]
    assert rest.sampling.seed == first.sampling.seed
    assert ended(told.links["a"]) == [first.asking]
    told.links["b"].deliver(delta("r", [6]))
    # What the first one still says of it counts no more.
    late = replace(delta("r", [9], finished=FinishReason.ABORT), asking=first.asking)
    told.links["a"].deliver(late)
    await turns()
    told.links["b"].deliver(delta("r", [7], finished=FinishReason.LENGTH))
    output = (await asyncio.wait_for(task, 10))[-1].outputs[0]
    assert (output.token_ids, output.finish_reason) == ([5, 6, 7], "length")


async def test_it_waits_for_as_long_as_the_other_engine_would_take(told):
    task = await begin(told)
    slow = replace(IDLE, prefill=Line(0.0, 0.1))
    await told.tell("a", report=ASLEEP)
    for _ in range(4):
        await told.tell("b", report=slow)
        assert asked(told.links["b"]) == [], "40 tokens take 4 s there"
        told.now_s += 1.0
    await told.tell("b", report=slow)
    assert len(asked(told.links["b"])) == 1
    task.cancel()


async def test_each_token_of_an_engine_that_drains_lets_its_request_stay(told):
    task = await begin(told)
    for token in range(5):
        told.links["a"].deliver(delta("r", [token]))
        await wait(told, 0.9 * LEAST_S)
    assert asked(told.links["b"]) == []
    told.links["a"].deliver(delta("r", [7], finished=FinishReason.LENGTH))
    assert (await asyncio.wait_for(task, 10))[-1].outputs[0].token_ids == [0, 1, 2, 3, 4, 7]


async def test_where_all_sleep_a_stream_waits_and_that_time_counts_for_no_other_engine(told):
    task = await begin(told)
    await told.tell("a", report=ASLEEP)
    await told.tell("b", report=replace(BUSY, is_asleep=True))
    for _ in range(3):
        told.now_s += 100.0
        await told.tell("a", report=ASLEEP)
    # Both are woken, and one of them is the first.
    await told.tell("b")
    assert asked(told.links["b"]) == []
    told.now_s += 0.5 * LEAST_S
    await told.tell("a")
    told.now_s += 10.0
    await told.tell("b")
    assert asked(told.links["b"]) == []
    assert ended(told.links["a"]) == []
    task.cancel()


async def test_what_was_aborted_goes_nowhere(told):
    task = await begin(told)
    await wait(told, 0.0)
    told.client.abort("r")
    await wait(told, 2 * LEAST_S)
    assert asked(told.links["b"]) == []
    output = (await asyncio.wait_for(task, 10))[-1].outputs[0]
    assert output.finish_reason == "abort"


async def test_all_samples_of_a_parked_request_go(told):
    task = await begin(told, params=SamplingParams(n=3))
    await wait(told, 0.0)
    await wait(told, LEAST_S)
    names = {each.request_id for each in asked(told.links["a"])}
    assert len(names) == 3
    assert {each.request_id for each in asked(told.links["b"])} == names
    task.cancel()


def test_how_long_it_takes_elsewhere_is_asked_once_for_each_silence():
    silent, asked_for = SilentAskings(), []

    def predict_s(request):
        asked_for.append(request.asking)
        return 5.0

    request = SimpleNamespace(asking=1, num_tokens=3)

    def due(now_s):
        return silent.due([request], predict_s, now_s)

    assert [due(now_s) for now_s in (0.0, 0.9, 1.0, 3.0, 4.9)] == [[]] * 5
    assert asked_for == [1]
    request.num_tokens = 4
    assert [due(now_s) for now_s in (5.0, 6.0, 9.9)] == [[]] * 3
    assert asked_for == [1, 1]
    assert due(10.0) == [request]
    assert due(10.0) == [], "it has left"


def test_few_are_predicted_at_a_time_and_all_leave_in_the_end():
    silent, asked_for = SilentAskings(), []

    def predict_s(request):
        asked_for.append(request.asking)
        return LEAST_S

    left = [SimpleNamespace(asking=number, num_tokens=3) for number in range(100)]
    assert silent.due(left, predict_s, 0.0) == []
    num_rounds = 0
    while left:
        num_rounds += 1
        before = len(asked_for)
        leaving = silent.due(left, predict_s, LEAST_S)
        assert len(asked_for) - before <= MAX_PREDICTIONS
        left = [each for each in left if each not in leaving]
    assert num_rounds == 4
    assert len(asked_for) == 100


async def test_what_an_engine_that_stops_had_open_waits_at_one_that_sleeps(told):
    await told.tell("b", report=ASLEEP)
    task = await begin(told)
    told.links["a"].deliver(delta("r", [5]))
    await turns()
    told.links["a"].deliver(failed("r", FailureKind.SHUTTING_DOWN))
    await turns()

    [rest] = asked(told.links["b"])
    assert rest.earlier_output.tolist() == [5]
    told.links["b"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    output = (await asyncio.wait_for(task, 10))[-1].outputs[0]
    assert output.token_ids == [5, 6]


async def test_where_all_stop_a_caller_hears_of_it(told):
    task = await begin(told)
    for engine in ("a", "b"):
        told.links[engine].deliver(failed("r", FailureKind.SHUTTING_DOWN))
        await turns()
    with pytest.raises(EngineDead):
        await asyncio.wait_for(task, 10)
