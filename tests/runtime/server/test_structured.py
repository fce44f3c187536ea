"""OpenAI's clients ask for JSON and other forms: what comes has them, in every cache state."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio

pytest.importorskip("xgrammar")

from raydix.runtime.actors import grammar_turns
from tests.runtime.server.served_engine import MODEL, Server, serving, write_checkpoint
from tests.runtime.server.test_cache_states import State, bring_to

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True},
}
TURNS: list[Any] = [{"role": "user", "content": "Which pet is that, which prompt has pages? " * 2}]
ASKED: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_tokens": 120, "seed": 5}
TOOL = {"type": "function", "function": {"name": "pet", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "now"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One for all, as its compilers take seconds to start."""
    folder = tmp_path_factory.mktemp("structured")
    l3 = {"backend": "file", "path": str(folder / "l3"), "max_bytes": "64MiB"}
    (folder / "model").mkdir()
    async with serving(
        write_checkpoint(folder / "model"),
        model={"max_model_len": 1024, "tool_format": "hermes"},
        cache={"l1": {"num_pages": 256}, "l2": {"bytes_per_node": "16MiB"}, "l3": l3},
    ) as server:
        yield server
        await server.engine.check()


async def whole(server: Server, **asked: Any) -> tuple[str, str | None]:
    answer = await server.client().chat.completions.create(**{**ASKED, **asked})
    [choice] = answer.choices
    return choice.message.content or "", choice.finish_reason


async def streamed(server: Server, **asked: Any) -> tuple[str, str | None]:
    stream = await server.client().chat.completions.create(**{**ASKED, **asked}, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    return "".join(each.delta.content or "" for each in choices), choices[-1].finish_reason


async def synchronous(server: Server, **asked: Any) -> tuple[str, str | None]:
    create = server.sync_client().chat.completions.create
    answer = await asyncio.to_thread(lambda: create(**{**ASKED, **asked}))
    return answer.choices[0].message.content or "", answer.choices[0].finish_reason


async def test_json_of_a_schema_is_the_same_in_every_cache_state_and_for_every_client(
    server: Server,
) -> None:
    text, reason = await whole(server, response_format=FORMAT)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert reason == "stop"

    for state in State:
        for way in (whole, streamed, synchronous):
            await bring_to(server.engine, state)
            assert await way(server, response_format=FORMAT) == (text, reason), (state, way)


async def test_outputs_have_the_form_that_is_asked_for(server: Server) -> None:
    async def told(structured: dict[str, Any]) -> str:
        text, reason = await whole(server, extra_body={"structured_outputs": structured})
        assert reason == "stop"
        return text

    jsonschema.validate(json.loads(await told({"json": SCHEMA})), SCHEMA)
    assert await told({"choice": ["rot", "grün"]}) in ("rot", "grün")
    assert (await told({"regex": "[0-9]{3}-[a-c]"}))[3] == "-"
    assert set(await told({"grammar": 'root ::= "x" root | "y" "y" "y"'})) <= {"x", "y"}
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "<a>"}}
    assert await told({"structural_tag": tag}) == "<a>"
    text, _ = await whole(server, response_format=tag)
    assert text == "<a>"

    answer = await server.client().completions.create(
        model=MODEL,
        prompt="The digits are",
        max_tokens=20,
        extra_body={"structured_outputs": {"regex": "[0-9]{4}"}},
    )
    assert len(answer.choices[0].text) == 4
    assert answer.choices[0].text.isdigit()


async def test_responses_have_the_form_that_their_text_is_to_have(server: Server) -> None:
    told = {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}

    answer = await server.client().responses.create(
        model=MODEL, input=TURNS, text={"format": told}, max_output_tokens=120
    )

    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    assert answer.status == "completed"
    assert answer.text.format.type == "json_schema"
    with pytest.raises(openai.BadRequestError) as caught:
        await server.client().responses.create(
            model=MODEL, input=TURNS, text={"format": {**told, "schema": {"not": {}}}}
        )
    assert caught.value.param == "text.format"


async def test_python_asks_for_a_form_by_the_same_names(server: Server) -> None:
    output = await server.direct(
        "Say one of two.", structured_outputs={"choice": ["yes", "no"]}, max_tokens=10
    )

    assert output.outputs[0].text in ("yes", "no")
    assert output.outputs[0].finish_reason == "stop"


async def test_rows_with_and_without_a_form_share_steps(server: Server) -> None:
    free = await whole(server, max_tokens=30)
    formed = await whole(server, response_format=FORMAT)

    both = await asyncio.gather(
        *(whole(server, max_tokens=30) for _ in range(3)),
        *(whole(server, response_format=FORMAT) for _ in range(3)),
        whole(server, extra_body={"structured_outputs": {"choice": ["a", "b"]}}),
    )

    assert both[:3] == [free] * 3
    assert both[3:6] == [formed] * 3
    assert both[6][0] in ("a", "b")


async def test_logprobs_are_those_of_the_model_without_the_mask(server: Server) -> None:
    answer = await server.client().chat.completions.create(
        **{**ASKED, "temperature": 0},
        logprobs=True,
        top_logprobs=3,
        extra_body={"structured_outputs": {"choice": ["zebra"]}},
    )
    free = await server.client().chat.completions.create(
        **{**ASKED, "temperature": 0, "max_tokens": 1}, logprobs=True, top_logprobs=3
    )

    assert answer.choices[0].message.content == "zebra"
    first, raw = answer.choices[0].logprobs.content[0], free.choices[0].logprobs.content[0]
    # What the mask keeps out is among the likeliest nevertheless.
    assert [each.token for each in first.top_logprobs] == [each.token for each in raw.top_logprobs]
    assert first.logprob < raw.logprob


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"pet", "now"}),
        ({"type": "function", "function": {"name": "pet"}}, {"pet"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [OTHER]}},
            {"now"},
        ),
    ],
)
async def test_a_model_of_random_weights_calls_the_tools_that_it_must(
    server: Server, choice: Any, names: set[str]
) -> None:
    asked: dict[str, Any] = {**ASKED, "tools": [TOOL, OTHER], "tool_choice": choice}
    for number in range(3):
        answer = await server.client().chat.completions.create(
            **{**asked, "seed": number, "max_tokens": 300}, parallel_tool_calls=False
        )
        [message] = [each.message for each in answer.choices]
        assert answer.choices[0].finish_reason == "tool_calls"
        assert not message.content
        [call] = message.tool_calls
        assert call.function.name in names
        if call.function.name == "pet":
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


async def test_strict_calls_among_text_are_well_formed(server: Server) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]

    text, reason = await whole(server, tools=[strict], max_tokens=20)

    assert reason in ("length", "stop")
    assert text


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "the keyword 'not' is not enforced at /not",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "(("}}},
            "structured_outputs",
            "cannot be compiled: ",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}},
            "structured_outputs",
            "has regex, choice; expected one of",
        ),
        (
            {"response_format": FORMAT, "extra_body": {"structured_outputs": {"regex": "a"}}},
            "response_format",
            "they name one thing",
        ),
        (
            {"response_format": FORMAT, "extra_body": {"ignore_eos": True}},
            "ignore_eos",
            "is set beside response_format",
        ),
        (
            {"tools": [TOOL], "tool_choice": "required", "extra_body": {"min_tokens": 2}},
            "min_tokens",
            "is set beside tools",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format",
            "Input should be an object of type",
        ),
        ({"tool_choice": "required"}, "tool_choice", "wants a tool that is not given"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "wants a tool that is not given: x",
        ),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice", "is 'always'; expected"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"not": {}}, "strict": True},
                    }
                ]
            },
            "tools",
            "the keyword 'not' is not enforced",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused_by_name(
    server: Server, asked: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await server.client().chat.completions.create(**{**ASKED, **asked})

    assert caught.value.param == param
    assert words in caught.value.message


async def test_a_tools_schema_that_takes_for_ever_is_refused_by_name(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_turns, "BUDGETS_S", (0.25,))
    hostile = {"properties": {"a": {"enum": ["a" * 40 + "!"], "pattern": "^(a+)+$"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": hostile}}

    with pytest.raises(openai.BadRequestError, match=r"takes more than 0\.25 s") as caught:
        await whole(server, tools=[tool], tool_choice="required")

    assert caught.value.param == "tools"


async def test_a_grammar_for_which_all_would_wait_ends_by_name(server: Server) -> None:
    [end_id] = server.engine.facts.client.eos_token_ids

    with pytest.raises(openai.BadRequestError, match="can be read in too many ways") as caught:
        await server.client().chat.completions.create(
            **{**ASKED, "max_tokens": 900},
            extra_body={
                "structured_outputs": {"grammar": 'root ::= root root root | "a" | "aa" | ""'},
                "logit_bias": {str(end_id): -100},
            },
        )

    assert caught.value.param == "structured_outputs"
