"""What the JSON of requests means, without a server."""

from typing import Any

import pytest
from pydantic import ValidationError

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from raydix.runtime.server.errors import failure_of, failure_of_validation
from raydix.runtime.server.response_writer import ResponseWriter
from raydix.runtime.server.wire.chat import (
    ChatRequest,
    chat_logprobs,
    max_tokens_of,
    names_of_parameters,
    num_logprobs_of,
    template_arguments,
)
from raydix.runtime.server.wire.completions import CompletionRequest, completion_choice, prompts_of
from raydix.runtime.server.wire.generation import (
    check_num_choices,
    check_stream_options,
    sampling_of,
    session_of,
)
from raydix.runtime.server.wire.messages import template_messages
from raydix.runtime.server.wire.responses import ResponsesRequest, turns_of_request
from raydix.runtime.server.wire.usage import UsageMeter


def chat(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


def output(num_new: int, finish_reason: str | None = None, **sources: int) -> RequestOutput:
    """News of a request whose prompt has three tokens."""
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        outputs=[
            CompletionOutput(
                text="x" * num_new, token_ids=[7] * num_new, finish_reason=finish_reason
            )
        ],
        finished=finish_reason is not None,
        metrics=RequestMetrics(cached_tokens_by_source=sources),
        num_cached_tokens=sources.get("l1", 0),
    )


def test_prompts_are_text_ids_or_lists_of_either() -> None:
    def read(prompt: object) -> object:
        return prompts_of(CompletionRequest.model_validate({"prompt": prompt}))

    assert read("a") == ["a"]
    assert read(["a", "b"]) == ["a", "b"]
    assert read([1, 2]) == [{"prompt_token_ids": [1, 2]}]
    assert read([[1], [2, 3]]) == [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]}]
    with pytest.raises(BadRequest, match="empty list"):
        read([])


def test_a_developer_is_a_system_and_parts_stay_parts() -> None:
    part = {"type": "text", "text": "a"}
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [part, part], "name": "n"},
        ]
    )
    assert template_messages(request.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [part, part], "name": "n"},
    ]


def test_instructions_come_first_and_input_may_be_text() -> None:
    request = ResponsesRequest.model_validate({"input": "a", "instructions": "b"})
    assert template_messages(turns_of_request(request)) == [
        {"role": "system", "content": "b"},
        {"role": "user", "content": "a"},
    ]


def test_two_names_of_one_thing_must_agree() -> None:
    assert max_tokens_of(chat(max_tokens=4)) == 4
    assert max_tokens_of(chat(max_completion_tokens=5, max_tokens=5)) == 5
    assert max_tokens_of(chat()) is None
    with pytest.raises(BadRequest, match="name one limit"):
        max_tokens_of(chat(max_tokens=4, max_completion_tokens=5))

    def read(**fields: str) -> str | None:
        return session_of(chat(**fields))

    assert read(prompt_cache_key="s") == read(session_id="s") == "s"
    with pytest.raises(BadRequest, match="name one session"):
        read(prompt_cache_key="s", session_id="t")


def test_options_without_what_they_belong_to_are_refused() -> None:
    assert num_logprobs_of(chat(logprobs=True)) == 0
    assert num_logprobs_of(chat(logprobs=True, top_logprobs=3)) == 3
    assert num_logprobs_of(chat()) is None
    with pytest.raises(BadRequest, match="logprobs is not"):
        num_logprobs_of(chat(top_logprobs=3))
    request = chat(stream_options={"include_usage": True})
    with pytest.raises(BadRequest, match="stream is not"):
        check_stream_options(request, request.stream_options)


def test_fields_of_other_servers_that_ask_for_nothing_are_taken() -> None:
    spoken = {
        "role": "assistant",
        "content": "b",
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "annotations": [],
        "refusal": "",
        "reasoning_content": "",
    }
    turns = [{"role": "user", "content": "a"}, spoken, {"role": "user", "content": "c"}]
    request = chat(messages=turns, functions=[], function_call="none", logprobs=False)
    assert template_messages(request.messages)[1] == {"role": "assistant", "content": "b"}

    assert num_logprobs_of(chat(logprobs=False, top_logprobs=0)) is None
    completion = CompletionRequest.model_validate({"prompt": "a", "logprobs": False})
    assert completion.logprobs is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"functions": [{"name": "f"}]},
        {"messages": [{"role": "assistant", "content": "b", "function_call": {"name": "x"}}]},
        {"messages": [{"role": "assistant", "content": "b", "refusal": "x"}]},
    ],
)
def test_fields_of_other_servers_that_ask_for_something_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        chat(**wrong)
    errors = raised.value.errors(include_url=False, include_input=False)
    assert failure_of_validation(errors, ()).details.message.endswith("Leave out what is named.")


def test_templates_get_variables_alone() -> None:
    assert template_arguments(chat(chat_template_kwargs={"a": 1})) == {"a": 1}
    for name in ("chat_template", "self", "tokenize"):
        with pytest.raises(BadRequest, match=repr(name)):
            template_arguments(chat(chat_template_kwargs={name: "x"}))


def test_a_prompt_ends_as_is_asked_beside_the_messages() -> None:
    assert template_arguments(chat(continue_final_message=True)) == {"continue_final_message": True}
    ending = {"continue_final_message": True, "add_generation_prompt": False}
    assert template_arguments(chat(**ending, chat_template_kwargs={"a": 1})) == {"a": 1, **ending}
    with pytest.raises(BadParameter, match=r"continue_final_message is true, and so is"):
        template_arguments(chat(continue_final_message=True, add_generation_prompt=True))


def test_choices_are_bounded() -> None:
    check_num_choices(8, 128)
    with pytest.raises(BadParameter, match=r"n is 128 and .* Send several"):
        check_num_choices(9, 128)


def test_sampling_has_the_given_values_and_the_engines_defaults() -> None:
    params = sampling_of(chat(stream=True, top_k=3, stop="x", min_tokens=2), max_tokens=9)
    assert (params.top_k, params.stop, params.min_tokens, params.max_tokens) == (3, ("x",), 2, 9)
    assert (params.temperature, params.output_kind) == (1.0, "delta")
    assert sampling_of(chat(), max_tokens=None).output_kind == "final"


def test_usage_counts_each_prompt_once_and_all_outputs() -> None:
    meter = UsageMeter(num_samples=2)
    # The second sample of each prompt finds the pages of the first; that is not told.
    for index, cached in enumerate((1, 3, 0, 3)):
        meter.add(index, output(2, l1=cached, computed=3 - cached))
    meter.add(0, output(1, "stop", l1=1, computed=2))

    usage = meter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (6, 9, 15)
    assert usage.prompt_tokens_details.cached_tokens == 1
    assert usage.prompt_tokens_details.cached_tokens_by_source == {"l1": 1, "computed": 5}


def test_logprobs_that_json_lacks_are_told_as_a_number() -> None:
    none = float("-inf")
    entry = {7: Logprob(none, 3, "é", "é".encode()), 8: Logprob(-0.5, 1, "b", b"b")}
    new = CompletionOutput(
        text="éé", token_ids=[7, 7], logprobs=[entry, entry], text_offsets=[10, 11]
    )

    told = chat_logprobs(new, 1)
    assert told is not None
    assert (told.content[0].logprob, told.content[0].bytes) == (-9999.0, [0xC3, 0xA9])
    assert [each.token for each in told.content[0].top_logprobs] == ["b"]
    columns = completion_choice(0, new, with_token_ids=False).logprobs
    assert columns is not None
    assert columns.top_logprobs == [{"é": -9999.0, "b": -0.5}] * 2
    assert columns.text_offset == [10, 11]


def test_tokens_with_one_text_are_told_apart() -> None:
    parts = {7: Logprob(-1.0, 1, "\ufffd", b"\xc3"), 8: Logprob(-2.0, 2, "\ufffd", b"\xa9")}
    new = CompletionOutput(text="", token_ids=[7], logprobs=[parts], text_offsets=[0])

    told = chat_logprobs(new, 2)
    assert told is not None
    assert [each.bytes for each in told.content[0].top_logprobs] == [[0xC3], [0xA9]]
    columns = completion_choice(0, new, with_token_ids=False).logprobs
    assert columns is not None
    # What was sampled goes by its part of the text, which has none of the character yet.
    assert columns.tokens == [""]
    assert columns.top_logprobs == [{"": -1.0, "\ufffd": -2.0}]
    both = {8: parts[8], 9: parts[8], **parts}
    others = CompletionOutput(text="", token_ids=[7], logprobs=[both], text_offsets=[0])
    columns = completion_choice(0, others, with_token_ids=False).logprobs
    assert columns is not None
    assert list(columns.top_logprobs[0] or ()) == ["\ufffd", "token_id:9", ""]


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; expected 1 to 2.*Leave it out"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "expected 0 to 20. Leave it out"),
        ({"top_p": 2.0}, "top_p", "top_p is 2.0"),
    ],
)
def test_a_parameter_is_called_as_the_request_calls_it(
    fields: dict[str, Any], name: str, message: str
) -> None:
    request = chat(**fields)
    with pytest.raises(BadParameter, match=message) as caught:
        sampling_of(
            request,
            max_tokens=max_tokens_of(request),
            logprobs=num_logprobs_of(request),
            names=names_of_parameters(request),
        )
    assert failure_of(caught.value).details.param == name


@pytest.mark.parametrize(
    ("reason", "status"), [("stop", "completed"), ("length", "incomplete"), ("abort", "failed")]
)
def test_a_response_ends_as_its_output_did(reason: str, status: str) -> None:
    writer = ResponseWriter(ResponsesRequest.model_validate({"input": "a"}), "id", "m", 5, None)
    events = [*writer.opening(), *writer.add(output(2)), *writer.add(output(1, reason))]
    events += writer.closing()

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == f"response.{status}"
    answer = events[-1].response
    assert answer is not None
    assert answer.status == status
    assert answer.output[0].content[0].text == "xxx"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3
