"""Several samples of one prompt: how they are merged, and that the prompt is computed once."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raydix.errors import BadRequest, DeadlineExceeded, Overloaded
from raydix.runtime.actors.gpu_model import GpuModel, HostTimer, LoadedGpuModel, RankPlace
from raydix.runtime.api.batch import answer_batch
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.client import AbortRequest, FailureKind, FinishReason, SubmitRequest
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.sleeping_runner import (
    SleepingOutput,
    SleepingRunner,
    build_sleeping_model,
)
from raydix.runtime.tiers.transfers import WaitLayer
from tests.runtime.api.fake_engine import FakeLink, delta, echo, failed
from tests.runtime.api.small_client import client_over
from tests.runtime.api.small_tokenizers import byte_token_tokenizer

LIMITS = ModelLimits(
    fingerprint="weights",
    max_model_len=64,
    vocab_size=300,
    max_waiting_requests=1024,
    eos_token_ids=(256,),
)
PAGE_SIZE, NUM_PAGES, NUM_TAIL = 16, 6, 5
PROMPT = [(7 * i) % 211 for i in range(PAGE_SIZE * NUM_PAGES + NUM_TAIL)]
NUM_OUTPUT = 4


def scripted(answer: Callable[[FakeLink, Any], None] | None) -> tuple[EngineClient, FakeLink]:
    link = FakeLink(answer)
    return client_over(link, LIMITS), link


@pytest.fixture
async def echoing() -> AsyncIterator[tuple[EngineClient, FakeLink]]:
    """An engine that answers each request by its prompt, token by token."""
    client, link = scripted(echo)
    yield client, link
    await client.close()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[EngineClient, FakeLink]]:
    """An engine that says what the test delivers."""
    client, link = scripted(None)
    yield client, link
    await client.close()


async def collect(client: EngineClient, **params: Any) -> list[RequestOutput]:
    return [each async for each in client.generate([1, 2, 3], params, "r")]


async def asked(
    outputs: AsyncGenerator[RequestOutput, None], link: FakeLink, number: int
) -> "asyncio.Task[RequestOutput]":
    """Waits for the first output; returns once so many requests were sent."""
    first = asyncio.ensure_future(anext(outputs))
    async with asyncio.timeout(5):
        while len(link.sent_of(SubmitRequest)) < number:
            await asyncio.sleep(0)
    return first


def ids_of(output: RequestOutput) -> list[tuple[int, list[int]]]:
    return [(each.index, each.token_ids) for each in output.outputs]


async def test_all_samples_come_in_one_final_output(
    echoing: tuple[EngineClient, FakeLink],
) -> None:
    client, link = echoing
    (final,) = await collect(client, n=3, output_kind="final", seed=2**63 - 1)

    assert ids_of(final) == [(index, [1, 2, 3]) for index in range(3)]
    assert (final.request_id, final.finished) == ("r", True)
    assert final.metrics.num_output_tokens == 9
    assert final.metrics.latency_s is not None
    assert final.metrics.cached_tokens_by_source == {"l1": 0, "computed:not_found": 3}
    requests = link.sent_of(SubmitRequest)
    assert [each.request_id for each in requests] == ["r", "r-1", "r-2"]
    assert [each.sample_of for each in requests] == [None, "r", "r"]
    assert [each.sampling.seed for each in requests] == [2**63 - 1, 0, 1]


async def test_cumulative_outputs_hold_every_sample_and_one_is_finished(
    echoing: tuple[EngineClient, FakeLink],
) -> None:
    outputs = await collect(echoing[0], n=3)
    assert [each.finished for each in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {len(each.outputs) for each in outputs} == {3}
    assert ids_of(outputs[-1]) == [(index, [1, 2, 3]) for index in range(3)]


async def test_deltas_of_each_sample_join_to_its_output(
    echoing: tuple[EngineClient, FakeLink],
) -> None:
    joined: dict[int, list[int]] = {}
    for output in await collect(echoing[0], n=3, output_kind="delta"):
        ((index, ids),) = ids_of(output)
        joined.setdefault(index, []).extend(ids)
    assert joined == {index: [1, 2, 3] for index in range(3)}


async def test_the_first_sample_alone_tells_of_the_prompt_and_once(
    echoing: tuple[EngineClient, FakeLink],
) -> None:
    client, link = echoing
    outputs = await collect(client, n=3, output_kind="delta", prompt_logprobs=0)
    telling = [each for each in outputs if each.prompt_logprobs is not None]
    assert [each.outputs[0].index for each in telling] == [0]
    asked_for = [each.sampling.num_prompt_logprobs for each in link.sent_of(SubmitRequest)]
    assert asked_for == [0, None, None]


async def test_samples_without_a_seed_have_different_ones(
    echoing: tuple[EngineClient, FakeLink],
) -> None:
    client, link = echoing
    await collect(client, n=8)
    assert len({each.sampling.seed for each in link.sent_of(SubmitRequest)}) == 8


async def test_samples_may_end_in_any_order(silent: tuple[EngineClient, FakeLink]) -> None:
    client, link = silent
    outputs = client.generate([1], {"n": 2}, "r")
    taking = await asked(outputs, link, 2)

    link.deliver(delta("r-1", [5], finished=FinishReason.LENGTH))
    first = await taking
    assert ids_of(first) == [(0, []), (1, [5])]
    assert (first.request_id, first.finished, first.metrics.latency_s) == ("r", False, None)

    link.deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert ids_of(await anext(outputs)) == [(0, [6]), (1, [5])]
    assert [each async for each in outputs] == []


async def test_the_error_of_one_sample_is_raised_and_the_others_are_aborted(
    silent: tuple[EngineClient, FakeLink],
) -> None:
    client, link = silent
    taking = await asked(client.generate([1], {"n": 3}, "r"), link, 3)
    link.deliver(failed("r-1", FailureKind.OVERLOADED))
    with pytest.raises(Overloaded):
        await taking
    assert {each.request_id for each in link.sent_of(AbortRequest)} == {"r", "r-2"}


async def test_a_deadline_brings_what_all_samples_have(
    silent: tuple[EngineClient, FakeLink],
) -> None:
    client, link = silent
    outputs = client.generate([1], {"n": 2}, "r")
    taking = await asked(outputs, link, 2)
    link.deliver(delta("r-1", [5]))
    await taking
    link.deliver(failed("r", FailureKind.DEADLINE_EXCEEDED))
    with pytest.raises(DeadlineExceeded) as caught:
        await anext(outputs)
    assert isinstance(caught.value.partial, RequestOutput)
    assert ids_of(caught.value.partial) == [(0, []), (1, [5])]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_leaving_or_aborting_ends_every_sample(
    silent: tuple[EngineClient, FakeLink], is_closed: bool
) -> None:
    client, link = silent
    outputs = client.generate([1], {"n": 3, "output_kind": "delta"}, "r")
    taking = await asked(outputs, link, 3)
    link.deliver(delta("r-1", [5]))
    await taking
    if is_closed:
        await outputs.aclose()
    else:
        client.abort("r")
    names = sorted(each.request_id for each in link.sent_of(AbortRequest))
    assert names == ["r", "r-1", "r-2"]


async def test_an_id_that_is_asked_again_in_vain_still_aborts_every_sample(
    silent: tuple[EngineClient, FakeLink],
) -> None:
    client, link = silent
    asking = asyncio.create_task(collect(client, n=3))
    while len(link.sent_of(SubmitRequest)) < 3:
        await asyncio.sleep(0)
    with pytest.raises(BadRequest, match="in use"):
        await collect(client, n=3)

    client.abort("r")
    aborted = [each.request_id for each in link.sent_of(AbortRequest)]
    assert aborted == ["r", "r-1", "r-2"]
    link.deliver(*(delta(each, finished=FinishReason.ABORT) for each in aborted))
    assert (await asking)[-1].finished


async def test_an_id_is_in_use_as_long_as_any_of_its_samples(
    silent: tuple[EngineClient, FakeLink],
) -> None:
    client, link = silent
    outputs = client.generate([1], {"n": 2}, "r")
    taking = await asked(outputs, link, 2)
    link.deliver(delta("r", [5], finished=FinishReason.LENGTH))
    await taking

    with pytest.raises(BadRequest, match="'r' is in use"):
        await collect(client, n=1)
    client.abort("r")
    assert [each.request_id for each in link.sent_of(AbortRequest)] == ["r-1"]


async def test_an_id_that_is_asked_anew_stands_for_the_new_request_alone(
    silent: tuple[EngineClient, FakeLink],
) -> None:
    client, link = silent
    samples = client.generate([1], {"n": 2}, "r")
    sampling = await asked(samples, link, 2)
    client.abort("r")

    # The samples' caller has not heard yet; by now other requests have their ids.
    again = await asked(client.generate([1], None, "r"), link, 3)
    other = await asked(client.generate([1], None, "r-1"), link, 4)
    client.abort("r")
    *_, last = link.sent_of(SubmitRequest)
    assert last.asking not in {each.asking for each in link.sent_of(AbortRequest)}
    for task in (sampling, again, other):
        task.cancel()
    await asyncio.gather(sampling, again, other, return_exceptions=True)


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1), (3, 3)])
async def test_an_id_is_taken_before_the_text_is_read(first: int, second: int) -> None:
    link = FakeLink(echo)
    client = client_over(link, LIMITS, byte_token_tokenizer())

    async def ask(number: int) -> list[RequestOutput]:
        return [each async for each in client.generate("ab", {"n": number}, "r")]

    taken, refused = await asyncio.gather(ask(first), ask(second), return_exceptions=True)
    assert isinstance(refused, BadRequest)
    assert isinstance(taken, list)
    assert [len(each.outputs) for each in taken][-1] == first
    await client.close()


async def test_more_samples_than_ever_may_wait_are_refused_at_once() -> None:
    link = FakeLink(None)
    client = client_over(link, replace(LIMITS, max_waiting_requests=2))

    def open_stream(_: int) -> AsyncGenerator[RequestOutput, None]:
        return client.generate([1], {"n": 3})

    match = r"n asks for 3 samples at once, .* lets 2 requests wait\. .*max_waiting_requests of 3"
    with pytest.raises(BadRequest, match=match):
        await answer_batch(open_stream, 1, lambda _: None, num_samples=3)
    assert link.sent_of(SubmitRequest) == []
    await client.close()


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n": 0}, "1 to 128"),
        ({"n": 129}, "1 to 128"),
        ({"n": 2, "temperature": 0}, "greedy samples are all equal"),
    ],
)
def test_numbers_of_samples_that_make_no_sense_are_refused(
    params: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadRequest, match=match):
        SamplingParams(**params)


class CountingRunner:
    """Counts the tokens that a rank computes."""

    def __init__(self, num_computed: list[int], rank: int) -> None:
        self._sleeping = SleepingRunner(0.0)
        self._num_computed = num_computed
        self._rank = rank

    def apply(self, plan: StepPlan) -> None:
        self._sleeping.apply(plan)

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        self._num_computed[self._rank] += int(plan.row_num_tokens.sum())
        return self._sleeping.execute(plan, wait_layer)


def build_counting_model(
    config: EngineConfig, place: RankPlace, *, num_computed: list[int]
) -> LoadedGpuModel:
    report = build_sleeping_model(config, place, step_s=0.0).report
    model = GpuModel(
        runner=CountingRunner(num_computed, place.rank),
        make_timer=HostTimer,
        make_transfers=None,
        enter_thread=lambda: None,
    )
    return LoadedGpuModel(report=report, prepare=lambda _num_pages: model)


@pytest.mark.parametrize("num_samples", [2, 16])
@pytest.mark.parametrize("chunk", [None, 2 * PAGE_SIZE])
async def test_the_prompt_is_computed_once_and_its_pages_are_shared(
    num_samples: int, chunk: int | None
) -> None:
    """Each further sample computes what the last, partly filled page lacks, and nothing before."""
    config = load_config(
        {
            "model": {"path": "unused", "max_model_len": 256},
            "parallel": {"dp": 2},
            "cache": {"page_size": PAGE_SIZE, "l1": {"num_pages": 64}, "l2": None},
            "scheduler": {"chunked_prefill_tokens": chunk, "max_running_requests": 8},
        }
    )
    num_computed = [0, 0]
    build = partial(build_counting_model, num_computed=num_computed)
    async with in_process_engine(config, build) as engine:
        params = {"n": num_samples, "max_tokens": NUM_OUTPUT, "output_kind": "final"}
        (output,) = [each async for each in engine.client.generate(PROMPT, params)]
        await engine.check()

    assert [len(each.token_ids) for each in output.outputs] == [NUM_OUTPUT] * num_samples
    # The last token that a request samples is not computed.
    num_decoded = num_samples * (NUM_OUTPUT - 1)
    expected = len(PROMPT) + (num_samples - 1) * NUM_TAIL + num_decoded
    assert sorted(num_computed) == [0, expected]
