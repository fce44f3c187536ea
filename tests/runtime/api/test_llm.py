import asyncio
import concurrent.futures
import io
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from raydix.errors import BadRequest, BatchFailed, Cancelled, EngineDead
from raydix.runtime.api import batch
from raydix.runtime.api import llm as llm_module
from raydix.runtime.api.llm import LLM
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.messages.client import AbortRequest, FailureKind, PrefetchPrompt, SubmitRequest
from tests.runtime.api.fake_engine import echo, failed


def once(function):
    """`concurrent.futures.wait` that calls `function` first, and is itself from then on."""
    original, calls = concurrent.futures.wait, []

    def wait(futures, timeout=None):
        calls.append(futures)
        if len(calls) == 1:
            return function(futures, timeout)
        return original(futures, timeout)

    return wait


@pytest.fixture
def llm(cluster, checkpoint):
    with LLM(checkpoint) as llm:
        yield llm


@pytest.mark.parametrize(
    ("prompts", "token_ids"),
    [
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ({"prompt_token_ids": [5]}, [[5]]),
        ([{"prompt_token_ids": [5]}, [6]], [[5], [6]]),
        (np.array([1, 2]), [[1, 2]]),
        ([np.array([1, 2])], [[1, 2]]),
        ([], []),
    ],
)
def test_each_shape_of_prompts_gives_finished_outputs_in_order(llm, prompts, token_ids):
    outputs = llm.generate(prompts)
    assert [each.outputs[0].token_ids for each in outputs] == token_ids
    assert all(each.finished for each in outputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ([i, i + 1] for i in (1, 3)),
        lambda: iter([{"prompt_token_ids": [1, 2]}, [3, 4]]),
        lambda: map(list, ((1, 2), (3, 4))),
    ],
)
def test_prompts_may_be_generated(llm, make):
    outputs = llm.generate(make())
    assert [output.prompt_token_ids for output in outputs] == [[1, 2], [3, 4]]
    assert [sum(sources.values()) for sources in llm.prefetch(make())] == [2, 2]


def test_token_ids_may_be_generated(llm):
    [output] = llm.generate(range(1, 4))
    assert output.prompt_token_ids == [1, 2, 3]


def test_what_is_no_prompt_is_a_bad_request(llm):
    with pytest.raises(BadRequest, match="prompts is a int"):
        llm.generate(5)


def test_text_prompts(llm):
    assert [each.outputs[0].text for each in llm.generate(["hello", {"prompt": "wörld"}])] == [
        "hello",
        "wörld",
    ]
    assert llm.generate("one")[0].prompt == "one"


def test_chat_takes_one_conversation_or_several(llm):
    messages = [{"role": "user", "content": "he"}]
    (one,) = llm.chat(messages, SamplingParams(skip_special_tokens=False))
    assert one.outputs[0].text == "<|user|>he<|end|><|assistant|>"
    assert len(llm.chat([messages, messages, messages])) == 3


def test_sampling_params_may_differ_per_prompt(llm, cluster):
    llm.generate([[1], [2]], [{"temperature": 0}, SamplingParams(temperature=0.5)])
    assert [each.sampling.temperature for each in cluster.links[0].sent_of(SubmitRequest)] == [
        0.0,
        0.5,
    ]
    with pytest.raises(BadRequest, match="1 sampling_params for 2 prompts"):
        llm.generate([[1], [2]], [{}])


def test_a_full_engine_is_waited_for_with_a_bounded_window(cluster, checkpoint, monkeypatch):
    monkeypatch.setattr(batch, "MAX_IN_FLIGHT", 4)
    refused = set()
    running = set()

    def answer(link, message):
        key = tuple(message.token_ids.tolist())
        running.add(message.request_id)
        assert len(running) <= 4
        if key not in refused:
            refused.add(key)
            link.deliver(failed(message.request_id, FailureKind.OVERLOADED))
        else:
            echo(link, message)
        running.discard(message.request_id)

    cluster.answer = answer
    with LLM(checkpoint) as llm:
        outputs = llm.generate([[each] for each in range(30)])
    assert [each.outputs[0].token_ids for each in outputs] == [[each] for each in range(30)]
    assert len(refused) == 30


def refuse_nines(link, message):
    if isinstance(message, SubmitRequest) and message.token_ids.tolist() == [9]:
        link.deliver(failed(message.request_id, FailureKind.BAD_REQUEST, "no nines"))
    else:
        echo(link, message)


def test_a_prompt_that_fails_is_named_and_the_others_are_answered(cluster, checkpoint):
    cluster.answer = refuse_nines
    with LLM(checkpoint) as llm:
        with pytest.raises(BatchFailed) as caught:
            llm.generate([[1], [9], [2], [], [3]])
        error = pickle.loads(pickle.dumps(caught.value))
    assert str(error).startswith(
        "2 of 5 prompts failed, which are counted from 0: prompt 1: BadRequest: no nines; "
        "prompt 3: BadRequest: The prompt is empty"
    )
    assert [type(each) for each in error.errors.values()] == [BadRequest, BadRequest]
    answers = [each and each.outputs[0].token_ids for each in error.outputs]
    assert answers == [[1], None, [2], None, [3]]


def test_many_failures_are_counted_and_not_all_told(cluster, checkpoint):
    cluster.answer = refuse_nines
    with LLM(checkpoint) as llm, pytest.raises(BatchFailed, match="; and 7 more") as caught:
        llm.generate([[9]] * 10)
    assert str(caught.value).count("no nines") == 3
    assert "The others" not in str(caught.value), "there are none"


def test_a_single_prompt_fails_by_its_own_error(cluster, checkpoint):
    cluster.answer = refuse_nines
    with LLM(checkpoint) as llm:
        for prompts in ([9], [[9]]):
            with pytest.raises(BadRequest, match="no nines"):
                llm.generate(prompts)


def test_a_conversation_that_fails_does_not_fail_the_others(llm):
    good = [{"role": "user", "content": "he"}]
    bad = [{"role": "user", "content": [{"type": "image"}]}]
    with pytest.raises(BatchFailed, match=r"1 of 2 .*prompt 1: BadRequest: .*'image'") as caught:
        llm.chat([good, bad])
    assert caught.value.outputs[0].finished


@pytest.mark.parametrize("prompts", [b"he", bytearray(b"he"), {"he", "el"}, 5])
def test_what_is_no_prompt_is_not_read_as_several(llm, prompts):
    with pytest.raises(BadRequest, match=r"^prompts is a"):
        llm.generate(prompts)


def test_sampling_params_that_are_none_are_refused(llm):
    with pytest.raises(BadRequest, match=r"^sampling_params is a int"):
        llm.generate(["he", "el"], 5)


@pytest.mark.parametrize("messages", [None, 5, "hello", b"hello"])
def test_what_is_no_conversation_is_refused_as_one(llm, messages):
    with pytest.raises(BadRequest, match="expected a list of dicts"):
        llm.chat(messages)


def test_the_end_of_the_engine_ends_the_batch_and_aborts_what_runs(cluster, checkpoint):
    def answer(link, message):
        if isinstance(message, SubmitRequest) and message.token_ids.tolist() == [9]:
            link.deliver(failed(message.request_id, FailureKind.ENGINE_DEAD, "it is over"))
        elif isinstance(message, AbortRequest):
            echo(link, message)

    cluster.answer = answer
    with LLM(checkpoint) as llm:
        with pytest.raises(EngineDead, match="it is over"):
            llm.generate([[1], [9], [2]])
        submitted = {each.request_id for each in cluster.links[0].sent_of(SubmitRequest)}
        aborted = {each.request_id for each in cluster.links[0].sent_of(AbortRequest)}
    assert len(submitted) == 3
    assert len(aborted) == 2


@pytest.mark.parametrize(
    ("options", "num_prompts", "is_terminal", "is_shown"),
    [({}, 3, True, True), ({}, 1, True, False), ({}, 3, False, False)]
    + [({"use_tqdm": False}, 3, True, False)],
)
def test_progress_is_shown_on_a_terminal_alone(
    llm, monkeypatch, options, num_prompts, is_terminal, is_shown
):
    screen = io.StringIO()
    console = partial(Console, file=screen, force_terminal=is_terminal, width=100)
    monkeypatch.setattr(llm_module, "Console", lambda **_: console())
    llm.generate([[1, 2]] * num_prompts, **options)
    assert ("3/3" in screen.getvalue()) is is_shown
    assert ("tokens/s" in screen.getvalue()) is is_shown


def test_control_calls(llm, cluster):
    assert llm.stats() == {"method": "stats"}
    assert llm.flush(l3=True) == {"method": "flush"}
    assert llm.explain("r") == {"method": "explain"}
    assert llm.attach_storage({"backend": "fake"}) == {"method": "attach_storage"}
    assert llm.detach_storage() == {"method": "detach_storage"}


def test_shutdown_ends_engine_and_thread(cluster, checkpoint):
    llm = LLM(checkpoint)
    llm.shutdown()
    llm.shutdown()
    assert cluster.handle.is_shut_down
    assert not any(each.name == "raydix-llm" for each in threading.enumerate())
    with pytest.raises(EngineDead, match="shut down"):
        llm.generate([1])


@pytest.mark.parametrize("call", [LLM.stats, LLM.shutdown])
def test_shutdown_ends_what_another_thread_waits_for(cluster, checkpoint, call):
    is_waiting = threading.Event()

    async def wait_for_ever(*_):
        is_waiting.set()
        await asyncio.Event().wait()

    llm = LLM(checkpoint)
    cluster.handle.call = wait_for_ever
    cluster.handle.shutdown, shut_down = wait_for_ever, cluster.handle.shutdown
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(call, llm)
        is_waiting.wait(5)
        cluster.handle.shutdown = shut_down
        llm.shutdown()
        error = waiting.exception(5)
    assert (error is None) if call == LLM.shutdown else "was shut down" in str(error)


def test_shutdown_may_be_called_by_the_handler_of_a_signal(cluster, checkpoint):
    cluster.answer = lambda link, message: None
    llm = LLM(checkpoint)
    former = signal.signal(signal.SIGUSR1, lambda *_: llm.shutdown())
    try:
        own = threading.get_ident()
        threading.Timer(0.1, signal.pthread_kill, [own, signal.SIGUSR1]).start()
        with pytest.raises(Cancelled):
            llm.generate([1])
        llm.shutdown()
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_failed_start_leaves_no_thread(cluster, checkpoint):
    cluster.refuses_links = True
    with pytest.raises(EngineDead, match="nobody listens"):
        LLM(checkpoint)
    assert not any(each.name == "raydix-llm" for each in threading.enumerate())


def test_a_start_that_is_interrupted_is_taken_back(cluster, checkpoint, monkeypatch):
    is_starting, is_interrupted = threading.Event(), threading.Event()

    def start_slowly(config, name, address, supervision, gateway, control):
        is_starting.set()
        is_interrupted.wait(5)
        return cluster.handle

    def interrupt(future, timeout=None):
        is_starting.wait(5)
        is_interrupted.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", start_slowly)
    monkeypatch.setattr("concurrent.futures.wait", once(interrupt))
    with pytest.raises(KeyboardInterrupt):
        LLM(checkpoint)
    assert cluster.handle.is_shut_down


def test_a_start_that_cannot_be_interrupted_is_left_behind_and_taken_back_later(
    cluster, checkpoint, monkeypatch
):
    is_starting, may_end = threading.Event(), threading.Event()

    def start_deaf(config, name, address, supervision, gateway, control):
        is_starting.set()
        may_end.wait(60)
        return cluster.handle

    def interrupt(future, timeout=None):
        is_starting.wait(5)
        raise KeyboardInterrupt

    monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", start_deaf)
    monkeypatch.setattr(llm_module, "UNDO_S", 0.01)
    monkeypatch.setattr("concurrent.futures.wait", once(interrupt))
    with pytest.raises(KeyboardInterrupt):
        LLM(checkpoint)
    assert not cluster.handle.is_shut_down
    [thread] = [each for each in threading.enumerate() if each.name == "raydix-llm"]

    may_end.set()
    thread.join(10)

    assert cluster.handle.is_shut_down
    assert not thread.is_alive()


def test_prefetch_takes_one_prompt_or_several(llm):
    assert llm.prefetch([1, 2]) == [{"l3": 2}]
    assert llm.prefetch([[1, 2], [3], "text"]) == [{"l3": 2}, {"l3": 1}, {"l3": 4}]


def test_a_prompt_that_cannot_be_prefetched_does_not_keep_others_from_it(llm):
    with pytest.raises(BadRequest, match="token id -1"):
        llm.prefetch([-1])
    with pytest.raises(BatchFailed) as caught:
        llm.prefetch([[1, 2], [-1], [3]])
    assert caught.value.outputs == [{"l3": 2}, None, {"l3": 1}]
    assert list(caught.value.errors) == [1]


def test_prefetches_in_flight_are_bounded_and_a_full_engine_is_waited_for(
    cluster, checkpoint, monkeypatch
):
    monkeypatch.setattr(llm_module, "MAX_PREFETCHES_IN_FLIGHT", 2)
    seen = []

    def refuse_the_first(link, message):
        seen.append(message)
        if isinstance(message, PrefetchPrompt) and len(seen) == 1:
            link.deliver(failed(message.request_id, FailureKind.OVERLOADED, retry_after_s=0.0))
        else:
            echo(link, message)

    cluster.answer = refuse_the_first
    with LLM(checkpoint) as llm:
        assert llm.prefetch([[index + 1] for index in range(5)]) == [{"l3": 1}] * 5
    assert len([message for message in seen if isinstance(message, PrefetchPrompt)]) == 6
