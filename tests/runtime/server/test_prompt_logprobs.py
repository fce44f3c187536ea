"""Logprobs of prompts over HTTP are the engine's own, and a prompt can be echoed with them."""

import threading
from pathlib import Path
from typing import Any

import openai
import pytest

from raydix.runtime.api.outputs import Logprob
from raydix.runtime.server.wire.chat import chat_logprobs
from tests.runtime.server.served_engine import MODEL, Server, serving

PROMPT = "A prompt of more than two pages, of which the caches hold everything by now."
TURNS: list[Any] = [{"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


def told_by(entries: list[dict[int, Logprob] | None]) -> list[dict[str, Any] | None]:
    """The entries as JSON has them."""
    return [
        None
        if entry is None
        else {
            str(token_id): {
                "logprob": pytest.approx(each.logprob, abs=1e-5),
                "rank": each.rank,
                "decoded_token": each.decoded_token,
            }
            for token_id, each in entry.items()
        }
        for entry in entries
    ]


async def test_a_completion_tells_the_logprobs_of_its_prompt(server: Server) -> None:
    expected = await server.direct(PROMPT, max_tokens=3, prompt_logprobs=2)
    assert expected.prompt_logprobs is not None
    plain = await server.direct(PROMPT, max_tokens=3)

    answer = await server.client().completions.create(
        **GREEDY, prompt=[PROMPT, "Hello"], max_tokens=3, n=2, extra_body={"prompt_logprobs": 2}
    )

    told = [choice.prompt_logprobs for choice in answer.choices]
    assert told[0] == told[1] == told_by(expected.prompt_logprobs)
    assert told[2] == told[3]
    assert [len(each) for each in told] == [len(PROMPT)] * 2 + [len("Hello")] * 2
    assert [answer.choices[index].text for index in (0, 1)] == [plain.outputs[0].text] * 2
    details = answer.usage.prompt_tokens_details
    assert details.cached_tokens == 0
    by_source = details.cached_tokens_by_source
    assert set(by_source) == {"computed:prompt_logprobs", "computed:partial_page"}


async def test_a_chat_tells_the_logprobs_of_its_prompt(server: Server) -> None:
    ids = await server.llm.apply_chat_template(TURNS)
    expected = await server.direct(ids, max_tokens=3, prompt_logprobs=0)
    assert expected.prompt_logprobs is not None

    create = server.client().chat.completions.create
    answer = await create(
        **GREEDY, messages=TURNS, max_tokens=3, n=2, extra_body={"prompt_logprobs": 0}
    )
    plain = await create(**GREEDY, messages=TURNS, max_tokens=3)

    assert answer.prompt_logprobs == told_by(expected.prompt_logprobs)
    assert answer.choices[0].message == plain.choices[0].message
    assert not hasattr(plain, "prompt_logprobs")


async def test_a_whole_chat_makes_its_logprobs_beside_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def told(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return chat_logprobs(*args)

    monkeypatch.setattr("raydix.runtime.server.chat.chat_logprobs", told)
    answer = await server.client().chat.completions.create(
        **GREEDY, messages=TURNS, max_tokens=3, n=2, logprobs=True, top_logprobs=2
    )

    assert [len(each.logprobs.content) for each in answer.choices] == [3, 3]
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("as_ids", [False, True])
async def test_an_echo_is_the_prompt_before_the_output(server: Server, as_ids: bool) -> None:
    prompt: Any = await server.llm.encode(PROMPT) if as_ids else PROMPT
    expected = await server.direct(PROMPT, max_tokens=4, prompt_logprobs=2, logprobs=2)
    assert expected.prompt_logprobs is not None
    output = expected.outputs[0]
    assert output.logprobs is not None

    create = server.client().completions.create
    answer = await create(**GREEDY, prompt=prompt, max_tokens=4, echo=True, logprobs=2)
    stream = await create(**GREEDY, prompt=prompt, max_tokens=4, echo=True, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]

    [choice] = answer.choices
    assert choice.text == PROMPT + output.text
    assert "".join(chunk.text for chunk in chunks) == PROMPT + output.text
    columns = choice.logprobs
    assert "".join(columns.tokens[: len(PROMPT)]) == PROMPT
    assert columns.text_offset[: len(PROMPT)] == list(range(len(PROMPT)))
    token_ids = [*expected.prompt_token_ids, *output.token_ids]
    entries = [*expected.prompt_logprobs, *output.logprobs]
    assert columns.token_logprobs == [
        None if entry is None else pytest.approx(entry[token_id].logprob, abs=1e-5)
        for token_id, entry in zip(token_ids, entries, strict=True)
    ]
    assert columns.top_logprobs[0] is None
    # None is lost, though some have one text: parts of characters.
    assert [len(each) for each in columns.top_logprobs[1:]] == [
        len(entry) for entry in entries[1:] if entry
    ]


async def test_an_echo_may_come_without_any_output(server: Server) -> None:
    create = server.client().completions.create
    answer = await create(**GREEDY, prompt=PROMPT, max_tokens=0, echo=True, logprobs=0)
    stream = await create(**GREEDY, prompt=PROMPT, max_tokens=0, echo=True, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]

    [choice] = answer.choices
    assert choice.text == PROMPT
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(PROMPT)
    assert answer.usage.completion_tokens == 0
    assert [chunk.text for chunk in chunks] == [PROMPT]


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("prompt_logprobs", {"stream": True, "prompt_logprobs": 1}, "is not available in a stream"),
        ("echo", {"stream": True, "echo": True, "logprobs": 1}, "with logprobs is not available"),
        ("prompt_logprobs", {"prompt_logprobs": 21}, "is 21; expected 0 to 20"),
        ("prompt_logprobs", {"prompt_logprobs": -1}, "is -1"),
        (
            "prompt_logprobs",
            {"echo": True, "logprobs": 1, "prompt_logprobs": 2},
            "is 2 and logprobs 1.*one number for both",
        ),
        ("max_tokens", {"max_tokens": 0}, "is 0"),
    ],
)
async def test_what_cannot_be_told_is_refused_by_name(
    server: Server, name: str, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{name} {problem}") as refused:
        await server.client().completions.create(model=MODEL, prompt=PROMPT, extra_body=fields)
    assert refused.value.param == name


async def test_a_streamed_chat_tells_no_logprobs_of_its_prompt(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs is not available"):
        await server.client().chat.completions.create(
            model=MODEL, messages=TURNS, stream=True, extra_body={"prompt_logprobs": 1}
        )


@pytest.mark.parametrize("prompt", [PROMPT, [1, 2]])
async def test_an_echo_without_a_tokenizer_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, prompt: Any
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(checkpoint / name)

    async with serving(tmp_path) as server:
        create = server.client().completions.create
        with pytest.raises(openai.BadRequestError, match="echo needs a tokenizer") as refused:
            await create(**GREEDY, prompt=prompt, max_tokens=1, echo=True)
        answer = await create(**GREEDY, prompt=[1, 2], max_tokens=1)

    assert refused.value.param == "echo"
    assert answer.usage.prompt_tokens == 2
