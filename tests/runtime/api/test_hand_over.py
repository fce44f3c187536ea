"""A client hands requests over: one engine gives their first token, another one all others."""

import asyncio
from dataclasses import replace

import pytest

from raydix.errors import EngineAsleep
from raydix.ids import RequestId
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    FailureKind,
    FinishReason,
    RetainSession,
    SubmitRequest,
)
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.retention import Retention, RetentionKind
from tests.runtime.api.fake_engine import FakeLink, delta, failed
from tests.runtime.api.small_client import collect, turns
from tests.runtime.api.test_line_router import IDLE, PROMPT, Told

PREFILL = replace(IDLE, role=EngineRole.PREFILL, l2="one")
DECODE = replace(IDLE, role=EngineRole.DECODE, l2="one", num_decoding=30)


@pytest.fixture
async def told():
    """Engine a is for prefill, engine b decodes for many."""
    told = Told()
    await told.tell("a", is_anew=True, report=PREFILL)
    await told.tell("b", is_anew=True, report=DECODE)
    yield told
    await told.client.close()


async def begin(told, name="r", params=None, options=None):
    outputs = told.client.generate(PROMPT, params, name, options)
    task = asyncio.create_task(collect(outputs))
    await turns()
    return task


def asked(link: FakeLink) -> list[SubmitRequest]:
    return link.sent_of(SubmitRequest)


async def hand_over(told, name="r", token=5):
    told.links["a"].deliver(delta(name, [token]))
    told.links["a"].deliver(delta(name, finished=FinishReason.HANDED_OVER))
    await turns()


async def end_of(task):
    return (await asyncio.wait_for(task, 10))[-1].outputs[0]


async def test_the_rest_is_asked_of_another_engine_with_what_has_come(told):
    task = await begin(told)
    [first] = asked(told.links["a"])
    assert first.goes_on_elsewhere
    assert not asked(told.links["b"])

    await hand_over(told)

    [rest] = asked(told.links["b"])
    assert (rest.earlier_output.tolist(), rest.goes_on_elsewhere) == ([5], False)
    assert rest.sampling.seed == first.sampling.seed
    told.links["b"].deliver(delta("r", [6, 7], finished=FinishReason.LENGTH))
    output = await end_of(task)
    assert (output.token_ids, output.finish_reason) == ([5, 6, 7], "length")
    assert told.figures.num_split == {"a": 0, "b": 1}


async def test_what_a_hand_over_took_is_counted_from_its_first_token_to_its_second(told):
    task = await begin(told)
    told.now_s = 1.0
    told.links["a"].deliver(delta("r", [5]))
    await turns()
    told.now_s = 1.5
    told.links["a"].deliver(delta("r", finished=FinishReason.HANDED_OVER))
    await turns()
    told.now_s = 3.0
    told.links["b"].deliver(delta("r", [6]))
    await turns()
    told.now_s = 4.0
    told.links["b"].deliver(delta("r", [7], finished=FinishReason.LENGTH))
    await end_of(task)
    assert told.figures.hand_over.figure()["sum"] == pytest.approx(2.0)


def expected(link: FakeLink) -> list[ExpectRequest]:
    return link.sent_of(ExpectRequest)


def taken_back(link: FakeLink) -> list[int]:
    return [each.asking for each in link.sent_of(AbortRequest)]


async def test_the_next_engine_is_foretold_a_request_and_knows_it_when_it_comes(told):
    task = await begin(told)
    [first], [foretold] = asked(told.links["a"]), expected(told.links["b"])
    assert (foretold.token_ids.tolist(), foretold.within_s > 10) == (PROMPT, True)
    assert not expected(told.links["a"])
    await hand_over(told)
    [rest] = asked(told.links["b"])
    assert (first.expected_as, rest.expected_as) == (None, foretold.asking)
    told.links["b"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    await end_of(task)
    assert not taken_back(told.links["b"])


async def test_an_engine_that_would_pull_the_pages_is_foretold_nothing(told):
    await told.tell("b", report=replace(DECODE, l2="other", pull=Line(0.0, 0.0)))
    task = await begin(told)
    assert asked(told.links["a"])[0].goes_on_elsewhere
    assert not expected(told.links["b"])
    task.cancel()


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.ABORT])
async def test_what_ends_with_its_first_engine_is_expected_nowhere(told, reason):
    task = await begin(told)
    told.links["a"].deliver(delta("r", [5], finished=reason))
    await end_of(task)
    [foretold] = expected(told.links["b"])
    assert taken_back(told.links["b"]) == [foretold.asking]


async def test_what_is_computed_whole_after_a_death_is_not_expected_besides(told):
    task = await begin(told)
    told.links["a"].break_off()
    await turns()
    [foretold] = expected(told.links["b"])
    assert taken_back(told.links["b"]) == [foretold.asking]
    [whole] = asked(told.links["b"])
    assert whole.expected_as is None
    told.links["b"].deliver(delta("r", [5, 6], finished=FinishReason.LENGTH))
    await end_of(task)


async def test_a_later_asking_of_the_same_name_is_expected_on_while_the_former_ends(told):
    told.client.abort("r")
    former = await begin(told)
    [before] = asked(told.links["a"])
    told.client.abort("r")
    later = await begin(told)
    told.links["a"].deliver(replace(delta("r", finished=FinishReason.ABORT), asking=before.asking))
    await turns()
    assert [each.asking for each in expected(told.links["b"])][-1] not in taken_back(
        told.links["b"]
    )
    for task in (former, later):
        task.cancel()


async def test_callers_see_the_first_token_before_the_hand_over(told):
    outputs = told.client.generate(PROMPT, None, "r")
    coming = asyncio.ensure_future(anext(outputs))
    await turns()
    told.links["a"].deliver(delta("r", [5]))
    assert (await asyncio.wait_for(coming, 10)).outputs[0].token_ids == [5]
    await outputs.aclose()


async def test_a_death_before_the_first_token_has_the_prompt_computed_by_whoever_is_left(told):
    task = await begin(told)
    told.links["a"].break_off()
    await turns()
    [whole] = asked(told.links["b"])
    assert (whole.earlier_output.tolist(), whole.goes_on_elsewhere) == ([], False)
    told.links["b"].deliver(delta("r", [5, 6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]


async def test_a_death_in_mid_hand_over_goes_on_where_that_was_foreseen(told):
    task = await begin(told)
    told.links["a"].deliver(delta("r", [5]))
    await turns()
    told.links["a"].break_off()
    await turns()
    [rest] = asked(told.links["b"])
    assert rest.earlier_output.tolist() == [5]
    told.links["b"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]


async def test_if_the_next_engine_is_gone_the_first_one_goes_on(told):
    task = await begin(told)
    told.links["b"].break_off()
    await turns()
    await hand_over(told)
    [_, rest] = asked(told.links["a"])
    assert (rest.earlier_output.tolist(), rest.goes_on_elsewhere) == ([5], False)
    told.links["a"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]


async def test_if_the_next_engine_is_lost_later_whoever_is_left_goes_on(told):
    task = await begin(told)
    await hand_over(told)
    told.links["b"].deliver(delta("r", [6]))
    await turns()
    told.links["b"].break_off()
    await turns()
    [_, rest] = asked(told.links["a"])
    assert (rest.earlier_output.tolist(), rest.goes_on_elsewhere) == ([5, 6], False)
    told.links["a"].deliver(delta("r", [7], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6, 7]


async def test_a_first_token_that_is_the_last_goes_nowhere(told):
    task = await begin(told)
    told.links["a"].deliver(delta("r", [5], finished=FinishReason.STOP))
    assert (await end_of(task)).finish_reason == "stop"
    assert not asked(told.links["b"])


async def test_who_is_aborted_in_mid_hand_over_goes_nowhere(told):
    task = await begin(told)
    told.links["a"].deliver(delta("r", [5]))
    await turns()
    told.client.abort("r")
    told.links["a"].deliver(delta("r", finished=FinishReason.HANDED_OVER))
    assert (await end_of(task)).finish_reason == "abort"
    assert not asked(told.links["b"])
    [foretold] = expected(told.links["b"])
    assert taken_back(told.links["b"]) == [foretold.asking]


async def test_hints_go_with_both_parts_as_the_first_token_may_be_the_last(told):
    hint = RequestOptions(retention=Retention(kind=RetentionKind.KEEP, seconds=5.0))
    task = await begin(told, options=hint)
    [first] = asked(told.links["a"])
    await hand_over(told)
    [rest] = asked(told.links["b"])
    assert (first.retention, rest.retention) == (hint.retention, hint.retention)
    task.cancel()


async def test_further_samples_go_the_same_way(told):
    first = await begin(told)
    second = await begin(told, "r1", options=RequestOptions(sample_of=RequestId("r")))
    assert [each.goes_on_elsewhere for each in asked(told.links["a"])] == [True, True]
    await hand_over(told)
    await hand_over(told, "r1")
    assert [each.request_id for each in asked(told.links["b"])] == ["r", "r1"]
    for task in (first, second):
        task.cancel()


async def test_one_token_is_asked_for_whole(told):
    task = await begin(told, params=SamplingParams(max_tokens=1))
    [whole] = asked(told.links["a"])
    assert not whole.goes_on_elsewhere
    task.cancel()


async def test_samples_that_the_first_engine_has_lost_are_not_handed_over_any_more(told):
    first = await begin(told)
    second = await begin(told, "r1", options=RequestOptions(sample_of=RequestId("r")))
    told.links["a"].break_off()
    await turns()
    wholes = asked(told.links["b"])
    assert [(each.request_id, each.goes_on_elsewhere) for each in wholes] == [
        ("r", False),
        ("r1", False),
    ]
    for task in (first, second):
        task.cancel()


async def test_a_sample_goes_on_elsewhere_though_others_are_still_at_the_first_engine():
    told = Told()
    await told.tell("a", is_anew=True, report=DECODE)
    await told.tell("b", is_anew=True, report=PREFILL)
    task = await begin(told, params=SamplingParams(n=3))
    names = [each.request_id for each in asked(told.links["b"])]
    assert len(names) == 3
    told.links["b"].deliver(delta(names[1], [5]))
    told.links["b"].deliver(delta(names[1], finished=FinishReason.HANDED_OVER))
    await turns()
    assert [each.request_id for each in asked(told.links["a"])] == [names[1]]
    task.cancel()
    await told.client.close()


async def test_what_an_engine_refuses_that_sleeps_goes_on_at_another_until_it_is_awake(told):
    task = await begin(told)
    await hand_over(told)
    told.links["b"].deliver(failed("r", FailureKind.ASLEEP))
    await turns()
    [_, rest] = asked(told.links["a"])
    assert rest.earlier_output.tolist() == [5]
    told.links["a"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]

    others = [await begin(told, "s")]
    await told.tell("b", report=DECODE)
    others.append(await begin(told, "t"))
    [*_, asleep, awake] = asked(told.links["a"])
    assert (asleep.goes_on_elsewhere, awake.goes_on_elsewhere) == (False, True)
    for other in others:
        other.cancel()


async def test_nothing_is_sent_to_an_engine_that_says_that_it_sleeps_but_where_all_do(told):
    # The first computes prompts, so that it gets every request.
    await told.tell("a", report=replace(PREFILL, is_asleep=True))
    there = [await begin(told, name) for name in ("r", "s")]
    assert [each.request_id for each in asked(told.links["b"])] == ["r", "s"]
    assert asked(told.links["a"]) == []
    assert told.client.has_link("a")

    await told.tell("b", report=replace(DECODE, is_asleep=True))
    there.append(await begin(told, "t"))
    assert len(asked(told.links["a"]) + asked(told.links["b"])) == 3, "it waits for a wake"
    await told.tell("b", report=DECODE)
    there.append(await begin(told, "u"))
    assert asked(told.links["b"])[-1].request_id == "u"
    for each in there:
        each.cancel()


async def test_callers_hear_that_the_last_engine_that_takes_requests_sleeps(told):
    told.links["b"].break_off()
    await turns()
    task = await begin(told)
    told.links["a"].deliver(failed("r", FailureKind.ASLEEP))
    with pytest.raises(EngineAsleep):
        await end_of(task)


HINT = RetainSession(session_id="s", cache_salt=None, retention=Retention(kind=RetentionKind.END))


def hints_of(told) -> list[int]:
    """How many hints each engine has heard."""
    return [len(link.sent_of(RetainSession)) for link in told.links.values()]


async def test_a_sessions_hint_waits_until_its_split_request_has_ended(told):
    task = await begin(told, options=RequestOptions(session_id="s"))
    told.client.tell_all(HINT)
    assert hints_of(told) == [0, 0]
    await hand_over(told)
    assert hints_of(told) == [0, 0]
    told.links["b"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    await end_of(task)
    assert hints_of(told) == [1, 1]


async def test_hints_of_other_sessions_and_of_requests_at_one_engine_wait_for_nobody(told):
    task = await begin(told, options=RequestOptions(session_id="s"))
    told.client.tell_all(replace(HINT, session_id="t"))
    told.client.tell_all(replace(HINT, cache_salt="other"))
    assert hints_of(told) == [2, 2]
    told.client.tell_all(HINT)
    # The second engine is to compute all of it: it knows what it has.
    told.links["a"].break_off()
    await turns()
    assert not asked(told.links["b"])[0].goes_on_elsewhere
    assert hints_of(told) == [2, 3]
    told.links["b"].deliver(delta("r", [5], finished=FinishReason.LENGTH))
    await end_of(task)


async def test_a_hint_is_told_once_its_split_request_is_aborted(told):
    task = await begin(told, options=RequestOptions(session_id="s"))
    told.client.tell_all(HINT)
    told.client.abort("r")
    assert hints_of(told) == [1, 1]
    told.links["a"].deliver(delta("r", finished=FinishReason.ABORT))
    await end_of(task)
