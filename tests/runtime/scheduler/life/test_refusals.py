"""What no client may hand on to the GPU actors, whatever it sends."""

import math
from dataclasses import replace
from typing import Any

import pytest

from raydix.errors import BadParameter
from raydix.ids import AskingId, RequestId
from raydix.runtime.api.request_stream import error_of
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    ExpectRequest,
    FailureKind,
    PrefetchPrompt,
    SubmitRequest,
)
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.scheduler.life.refusals import (
    is_sound_expectation,
    refuse_prefetch,
    refuse_request,
)
from tests.runtime.scheduler.core_driver import BASE, CoreDriver

SETTINGS = replace(BASE, vocab_size=1000)
REQUEST = SubmitRequest(
    asking=AskingId(1),
    request_id=RequestId("r"),
    token_ids=int32_array([1, 999]),
    sampling=DeviceSampling(seed=0),
    max_tokens=2,
)


def _keep(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.KEEP, seconds=seconds)


def test_what_is_in_order_is_not_refused() -> None:
    assert refuse_request(REQUEST, SETTINGS) is None
    extreme = DeviceSampling(
        seed=2**63 - 1,
        temperature=1e30,
        top_k=2**31 - 1,
        top_p=1e-9,
        num_logprobs=1000,
        min_tokens=2**31 - 1,
    )
    assert (
        refuse_request(replace(REQUEST, sampling=extreme, priority=-5, deadline_s=1e-3), SETTINGS)
        is None
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": int32_array([1, 1000])}, "token 1 of the prompt is 1000"),
        ({"token_ids": int32_array([-1, 5])}, "token 0 of the prompt is -1"),
        ({"token_ids": int32_array([])}, "no tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"deadline_s": math.nan}, "deadline_s is nan"),
        ({"deadline_s": math.inf}, "deadline_s is inf"),
        ({"deadline_s": 0.0}, "deadline_s is 0"),
        ({"retention": _keep(math.nan)}, "retention is for nan seconds"),
        ({"retention": _keep(math.inf)}, "retention is for inf seconds"),
        ({"retention": _keep(-1.0)}, "retention is for -1.0 seconds"),
        ({"priority": 2**40}, "priority"),
        ({"stop_token_ids": (1000,)}, "stop_token_ids has 1000"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids has 'a'"),
        ({"known_output": int32_array([5, 6])}, "known_output has 2 tokens; expected fewer than"),
        ({"known_output": int32_array([1000])}, "token 0 of the output is 1000"),
        ({"known_output": int32_array([-1])}, "token 0 of the output is -1"),
    ],
)
def test_wrong_request_is_refused_with_its_value(changes: dict[str, Any], words: str) -> None:
    failure = refuse_request(replace(REQUEST, **changes), SETTINGS)
    assert failure is not None
    assert failure.kind is FailureKind.BAD_REQUEST
    assert words in str(error_of(failure))


PUBLIC_NAMES = {
    "num_logprobs": "logprobs",
    "num_prompt_logprobs": "prompt_logprobs",
    "masked_until_min_tokens": "min_tokens",
    "biased_token_ids": "logit_bias",
    "biases": "logit_bias",
}
"""What callers call parameters of `DeviceSampling` that have another name there."""


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**63},
        {"seed": -1},
        {"temperature": math.nan},
        {"temperature": -0.5},
        {"top_k": -7},
        {"top_k": 2**31},
        {"top_p": math.nan},
        {"min_p": 1.5},
        {"repetition_penalty": math.inf},
        {"presence_penalty": -math.inf},
        {"min_tokens": -1},
        {"min_tokens": 2**31},
        {"num_logprobs": 10**9},
        {"num_prompt_logprobs": -1},
        {"num_prompt_logprobs": 1001},
        {"masked_until_min_tokens": (10**12,)},
        {"masked_until_min_tokens": ("a",)},
        {"biased_token_ids": (1000,), "biases": (1.0,)},
        {"biased_token_ids": (3, 3), "biases": (1.0, 1.0)},
        {"biased_token_ids": (3, 4), "biases": (1.0,)},
        {"biased_token_ids": tuple(range(1025)), "biases": (1.0,) * 1025},
        {"biases": (math.nan,), "biased_token_ids": (3,)},
        {"biases": (math.inf,), "biased_token_ids": (3,)},
        {"biases": (-100.5,), "biased_token_ids": (3,)},
    ],
)
def test_wrong_sampling_is_refused_by_the_callers_name(changes: dict[str, Any]) -> None:
    sampling = replace(REQUEST.sampling, **changes)
    failure = refuse_request(replace(REQUEST, sampling=sampling), SETTINGS)
    assert failure is not None
    [name, *_] = changes
    error = error_of(failure)
    assert isinstance(error, BadParameter)
    assert error.parameter == PUBLIC_NAMES.get(name, name)


@pytest.mark.parametrize(
    ("chunked_prefill", "num_top", "is_refused"),
    [(True, 20, False), (True, 300, True), (False, 5, False), (False, 20, True)],
)
def test_more_prompt_logprobs_than_a_step_may_send_are_refused(
    chunked_prefill: bool, num_top: int, is_refused: bool
) -> None:
    settings = replace(
        SETTINGS,
        max_model_len=100_000,
        prefill_budget_tokens=2048,
        chunked_prefill=chunked_prefill,
    )
    request = replace(
        REQUEST,
        token_ids=int32_array([1] * 50_000),
        sampling=replace(REQUEST.sampling, num_prompt_logprobs=num_top),
    )
    failure = refuse_request(request, settings)
    assert (failure is not None) == is_refused
    if failure is not None:
        assert f"prompt_logprobs is {num_top}" in str(error_of(failure))


def test_prefetch_of_unknown_tokens_is_refused() -> None:
    prompt = PrefetchPrompt(
        asking=AskingId(1), request_id=RequestId("p"), token_ids=int32_array([1000])
    )
    settings = replace(SETTINGS, has_host_memory=True)
    failure = refuse_prefetch(prompt, settings)
    assert failure is not None
    assert "1000" in failure.message
    assert refuse_prefetch(replace(prompt, token_ids=int32_array([999])), settings) is None


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_nothing_is_pinned_for_no_time_or_for_ever(seconds: float) -> None:
    settings = replace(SETTINGS, has_host_memory=True)
    prompt = PrefetchPrompt(
        asking=AskingId(1),
        request_id=RequestId("p"),
        token_ids=int32_array([999]),
        pin_s=seconds,
    )
    failure = refuse_prefetch(prompt, settings)
    assert failure is not None
    assert isinstance(error_of(failure), BadParameter)
    assert f"is {seconds}" in failure.message
    assert refuse_prefetch(replace(prompt, pin_s=1e9), settings) is None


@pytest.mark.parametrize(("priority", "expected"), [(-5, True), (2**31 - 1, True), (2**31, False)])
def test_request_that_is_to_come_has_a_priority_as_others_have(
    priority: int, expected: bool
) -> None:
    told = ExpectRequest(
        asking=AskingId(1), token_ids=int32_array([1]), within_s=1.0, priority=priority
    )
    assert is_sound_expectation(told, replace(SETTINGS, has_host_memory=True)) is expected


def test_deadline_that_is_no_number_leaves_the_deadlines_of_others_alone() -> None:
    driver = CoreDriver()
    driver.submit([1, 2, 3], name="odd", deadline_s=math.nan)
    assert driver.answers["odd"].ending == "BadRequest"
    driver.submit([5] * 8, name="late", max_tokens=50, deadline_s=0.5)
    driver.wait(1.0)
    assert driver.answers["late"].ending == "DeadlineExceeded"


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**63, 2**64 - 1])
def test_no_number_of_one_client_ends_the_scheduler(number: int) -> None:
    driver = CoreDriver()
    odd = [
        driver.submit([1, 2, 3], max_tokens=3, sampling=DeviceSampling(seed=0, min_tokens=number)),
        driver.submit([1, 2, 3], max_tokens=3, sampling=DeviceSampling(seed=0, top_k=number)),
        driver.submit([1, 2, 3], max_tokens=number),
        driver.submit([1, 2, 3], max_tokens=3, priority=number),
        driver.submit([1, 2, 3], max_tokens=3, stop_token_ids=(number,)),
    ]
    driver.run()
    assert {driver.answers[name].ending for name in odd} <= {"length", "BadRequest"}
