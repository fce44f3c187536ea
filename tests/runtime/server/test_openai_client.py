"""OpenAI's client against the server: tokens, text and usage are those of the engine's own API."""

import asyncio
from typing import Any

import openai
import pytest

from tests.runtime.server.served_engine import MODEL, Server

PROMPT = "The quick brown fox jumps over the lazy dog, and then it sleeps for a while."
TURNS: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which animal jumps over which other one?"},
]
IDS = {"return_token_ids": True}


async def test_completion_equals_the_engines_own(server: Server) -> None:
    expected = await server.direct(PROMPT, max_tokens=20)
    answer = await server.client().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=20, temperature=0, extra_body=IDS
    )

    [choice] = answer.choices
    assert choice.text == expected.outputs[0].text
    assert choice.token_ids == expected.outputs[0].token_ids
    assert choice.finish_reason == expected.outputs[0].finish_reason
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 20


async def test_synchronous_client_gets_the_same(server: Server) -> None:
    expected = await server.direct(PROMPT, max_tokens=8)
    client = server.sync_client()

    def ask() -> tuple[str, str]:
        whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0)
        stream = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, stream=True
        )
        return whole.choices[0].text, "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(ask) == (expected.outputs[0].text,) * 2


async def test_streamed_chat_equals_the_whole_answer(server: Server) -> None:
    ids = await server.llm.apply_chat_template(TURNS)
    expected = await server.direct(ids, max_tokens=20)
    create = server.client().chat.completions.create
    asked: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_completion_tokens": 20}

    whole = await create(**asked, temperature=0)
    stream = await create(
        **asked, temperature=0, stream=True, stream_options={"include_usage": True}, extra_body=IDS
    )
    chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content == expected.outputs[0].text
    pieces = [chunk.choices[0] for chunk in chunks[:-1]]
    assert pieces[0].delta.role == "assistant"
    assert "".join(piece.delta.content for piece in pieces) == expected.outputs[0].text
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    assert token_ids == expected.outputs[0].token_ids
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_continuous_usage_grows_to_the_total(server: Server) -> None:
    stream = await server.client().completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    usages = [chunk.usage async for chunk in stream]

    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert {usage.prompt_tokens for usage in usages} == {len(PROMPT)}


async def test_response_equals_the_engines_own_streamed_and_whole(server: Server) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    expected = await server.direct(await server.llm.apply_chat_template(turns), max_tokens=16)
    create = server.client().responses.create
    asked: dict[str, Any] = {
        "model": MODEL,
        "instructions": "Be brief.",
        "input": PROMPT,
        "max_output_tokens": 16,
        "temperature": 0,
        "store": False,
    }

    whole = await create(**asked)
    events = [event async for event in await create(**asked, stream=True)]

    assert whole.output_text == expected.outputs[0].text
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.input_tokens == len(expected.prompt_token_ids)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.outputs[0].text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.incomplete"]
    assert events[-1].response.output == [
        part.model_copy(update={"id": events[-1].response.output[0].id}) for part in whole.output
    ]


async def test_earlier_answers_come_back_as_input(server: Server) -> None:
    client = server.client()
    first = await client.responses.create(
        model=MODEL, input="Hello.", max_output_tokens=4, temperature=0, store=False
    )
    answer = [item.model_dump(exclude_none=True) for item in first.output]
    turns: Any = [{"role": "user", "content": "Hello."}, *answer, {"role": "user", "content": "?"}]
    second = await client.responses.create(
        model=MODEL, input=turns, max_output_tokens=4, temperature=0, store=False
    )

    ids = await server.llm.apply_chat_template(
        [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "?"},
        ]
    )
    assert second.usage.input_tokens == len(ids)


async def test_lists_of_prompts_and_samples_keep_their_order(server: Server) -> None:
    prompts = [list(range(10, 40)), list(range(50, 90)), [7]]
    expected = [await server.direct(each, max_tokens=6) for each in prompts]
    create = server.client().completions.create

    whole = await create(
        model=MODEL, prompt=prompts, n=2, max_tokens=6, temperature=0, extra_body=IDS
    )
    stream = await create(
        model=MODEL, prompt=prompts, n=2, max_tokens=6, temperature=0, extra_body=IDS, stream=True
    )
    streamed: dict[int, list[int]] = {}
    async for chunk in stream:
        streamed.setdefault(chunk.choices[0].index, []).extend(chunk.choices[0].token_ids)

    tokens = [each.outputs[0].token_ids for each in expected for _ in range(2)]
    assert [choice.token_ids for choice in whole.choices] == tokens
    assert [streamed[index] for index in range(6)] == tokens
    assert whole.usage.prompt_tokens == sum(map(len, prompts))
    assert whole.usage.completion_tokens == 36


async def test_samples_differ_and_the_first_has_the_given_seed(server: Server) -> None:
    sampling: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
    expected = await server.direct(PROMPT, **sampling)
    answer = await server.client().completions.create(
        model=MODEL, prompt=PROMPT, n=3, extra_body=IDS, **sampling
    )

    tokens = [choice.token_ids for choice in answer.choices]
    assert tokens[0] == expected.outputs[0].token_ids
    assert len({tuple(each) for each in tokens}) == 3


async def test_logprobs_are_the_engines(server: Server) -> None:
    expected = await server.direct(PROMPT, max_tokens=4, logprobs=2)
    wanted = [
        entry[token_id].logprob
        for token_id, entry in zip(
            expected.outputs[0].token_ids, expected.outputs[0].logprobs, strict=True
        )
    ]
    client = server.client()

    plain = await client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2
    )
    ids = await server.llm.apply_chat_template(TURNS)
    chat_expected = await server.direct(ids, max_tokens=4, logprobs=2)
    chat = await client.chat.completions.create(
        model=MODEL, messages=TURNS, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )

    assert plain.choices[0].logprobs.token_logprobs == pytest.approx(wanted, abs=1e-5)
    content = chat.choices[0].logprobs.content
    assert [len(each.top_logprobs) for each in content] == [2] * 4
    sampled = chat_expected.outputs[0].logprobs[0][chat_expected.outputs[0].token_ids[0]]
    assert content[0].logprob == pytest.approx(sampled.logprob, abs=1e-5)


async def test_stop_strings_end_an_answer(server: Server) -> None:
    expected = await server.direct(PROMPT, max_tokens=20)
    stop = expected.outputs[0].text[5:7]
    answer = await server.client().completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=20, temperature=0, stop=[stop]
    )

    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == expected.outputs[0].text.partition(stop)[0]


async def test_streamed_samples_end_where_whole_ones_do(server: Server) -> None:
    """The model's bytes are seldom whole characters, and the stop string has several tokens."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "n": 4, "seed": 7}
    free = await server.client().completions.create(**asked)
    stop = [choice.text[4:7] for choice in free.choices]
    whole = await server.client().completions.create(**asked, stop=stop)
    stream = await server.client().completions.create(**asked, stop=stop, stream=True)

    texts, reasons = dict.fromkeys(range(4), ""), {}
    async for chunk in stream:
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == dict.fromkeys(range(4), "stop")
    assert not any(word in text for word in stop for text in texts.values())


async def test_models_and_tokens_are_told(server: Server) -> None:
    [model] = (await server.client().models.list()).data
    async with server.http() as http:
        tokens = (await http.post("/tokenize", json={"prompt": PROMPT})).json()
        chat = (await http.post("/tokenize", json={"messages": TURNS})).json()
        text = (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()

    assert (model.id, model.max_model_len) == (MODEL, 256)
    assert tokens["tokens"] == await server.llm.encode(PROMPT)
    assert chat["tokens"] == await server.llm.apply_chat_template(TURNS)
    assert text == {"prompt": PROMPT}


async def test_clients_see_typed_errors(server: Server) -> None:
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="'other' is not served"):
        await client.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="context is 256 tokens"):
        await client.completions.create(model=MODEL, prompt="x" * 300)
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        await client.completions.create(model=MODEL, prompt=PROMPT, temperature=-1)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": "", "stream": True}, "prompt"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt.1"),
        ("/v1/completions", {"prompt": [[1], [999_999]]}, "prompt.1"),
        ("/v1/completions", {"prompt": "x" * 300}, "prompt"),
        ("/v1/completions", {"prompt": "a", "deadline_s": 0}, "deadline_s"),
        (
            "/v1/completions",
            {"prompt": "a", "echo": True, "logprobs": 1, "prompt_logprobs": 2},
            "prompt_logprobs",
        ),
        ("/v1/chat/completions", {"messages": [{**TURNS[0], "content": "x" * 300}]}, "messages"),
        ("/v1/responses", {"input": "x" * 300}, "input"),
        ("/v1/responses", {"input": "x" * 300, "stream": True}, "input"),
        (
            "/v1/responses",
            {"input": "a", "session_id": "a", "prompt_cache_key": "b"},
            "prompt_cache_key",
        ),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_a_refusal_names_the_field_that_is_wrong(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    async with server.http() as http:
        answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    # Of a list of prompts the message says which one.
    assert error["message"].startswith("prompt.1: ") == (param == "prompt.1")
    is_too_long = "model's context" in error["message"]
    assert error["code"] == ("context_length_exceeded" if is_too_long else None)


async def test_biases_are_the_engines(server: Server) -> None:
    create = server.client().completions.create
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0}

    forced = await create(**asked, logit_bias={"65": 100}, extra_body=IDS)
    chat = await server.client().chat.completions.create(
        model=MODEL, messages=TURNS, max_tokens=3, logit_bias={"66": 100}, extra_body=IDS
    )
    with pytest.raises(openai.BadRequestError, match="logit_bias of token 65 is 101"):
        await create(**asked, logit_bias={"65": 101})
    with pytest.raises(openai.BadRequestError, match="logit_bias has \\[999999\\]"):
        await create(**asked, logit_bias={"999999": 1})

    assert forced.choices[0].token_ids == [65] * 3
    assert chat.choices[0].token_ids == [66] * 3


async def test_logprobs_address_the_text_streamed_as_whole(server: Server) -> None:
    create = server.client().completions.create
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 60, "logprobs": 2}
    for prompt in ("hello", "naïve 🦜", "日本"):
        whole = (await create(**asked, prompt=prompt)).choices[0]
        chunks = [
            chunk.choices[0] async for chunk in await create(**asked, prompt=prompt, stream=True)
        ]

        columns = whole.logprobs
        assert "".join(columns.tokens) == whole.text
        for token, offset, tops in zip(
            columns.tokens, columns.text_offset, columns.top_logprobs, strict=True
        ):
            assert whole.text[offset : offset + len(token)] == token
            assert token in tops
        assert "".join(each.text for each in chunks) == whole.text
        for name in ("tokens", "text_offset", "top_logprobs"):
            told = [each for chunk in chunks for each in getattr(chunk.logprobs, name)]
            assert told == getattr(columns, name)
