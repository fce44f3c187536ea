"""Chunks that are written around their text are those that are written in full."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.api.outputs import CompletionOutput, Logprob
from raydix.runtime.server.errors import failure
from raydix.runtime.server.event_stream import data_event, data_failure
from raydix.runtime.server.plain_chunks import PlainChunks, SaidChunks
from raydix.runtime.server.wire.base import WireAnswer
from raydix.runtime.server.wire.chat import ChatChunk, ChunkChoice, Delta
from raydix.runtime.server.wire.completions import Completion, completion_choice

NAMES = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["<text of this chunk>", '"token_ids":[]', '"<text of this chunk>"']
)


def chat_chunk(name: str, index: int, new: CompletionOutput, with_token_ids: bool) -> WireAnswer:
    token_ids = new.token_ids if with_token_ids else None
    choice = ChunkChoice(index=index, delta=Delta(content=new.text), token_ids=token_ids)
    return ChatChunk(id="chatcmpl-1", created=1, model=name, choices=[choice])


def text_chunk(name: str, index: int, new: CompletionOutput, with_token_ids: bool) -> WireAnswer:
    choice = completion_choice(index, new, with_token_ids)
    return Completion(id="cmpl-1", created=1, model=name, choices=[choice])


@pytest.mark.parametrize("in_full", [chat_chunk, text_chunk])
@given(name=NAMES, texts=st.lists(NAMES, min_size=1), with_token_ids=st.booleans())
def test_a_plain_chunk_holds_what_one_written_in_full_does(
    in_full: type, name: str, texts: list[str], with_token_ids: bool
) -> None:
    chunks = PlainChunks(lambda index, new: in_full(name, index, new, with_token_ids))
    for index, text in enumerate(texts):
        new = CompletionOutput(text=text, token_ids=list(range(index)))
        event = chunks.event(index % 2, new)
        whole = data_event(in_full(name, index % 2, new, with_token_ids))
        assert event is not None
        assert event.endswith(b"\n\n")
        assert b"\n" not in event[:-2]
        assert json.loads(event[5:]) == json.loads(whole[5:])


@pytest.mark.parametrize("fields", [("content",), ("reasoning_content", "reasoning")])
@given(name=NAMES, texts=st.lists(NAMES, min_size=1))
def test_a_chunk_that_says_one_thing_is_the_one_written_in_full(
    fields: tuple[str, ...], name: str, texts: list[str]
) -> None:
    def in_full(index: int, said: dict[str, str]) -> WireAnswer:
        choice = ChunkChoice(index=index, delta=Delta(**said))
        return ChatChunk(id="chatcmpl-1", created=1, model=name, choices=[choice])

    chunks = SaidChunks(in_full)
    for index, text in enumerate(texts):
        whole = data_event(in_full(index % 2, dict.fromkeys(fields, text)))
        assert json.loads(chunks.event(index % 2, fields, text)[5:]) == json.loads(whole[5:])


@pytest.mark.parametrize("name", ["m", "\u2028"])
def test_events_are_lines_for_whoever_splits_at_what_unicode_calls_line_ends(name: str) -> None:
    text = "a\x85b\u2028c\u2029d\x1ce\x0bf\u00e9"
    chunks = PlainChunks(lambda index, new: text_chunk(name, index, new, False))
    new = CompletionOutput(text=text)
    failed = failure(400, text, "invalid_request_error")
    for event in (
        chunks.event(0, new),
        data_event(text_chunk(name, 0, new, False)),
        data_failure(failed),
    ):
        assert event is not None
        data, end = event.decode().splitlines()
        assert end == ""
        assert json.dumps(text)[1:-1] in json.dumps(json.loads(data[5:]))


def test_a_chunk_with_more_than_text_is_not_plain() -> None:
    chunks = PlainChunks(lambda index, new: text_chunk("m", index, new, False))
    assert chunks.event(0, CompletionOutput(finish_reason="stop")) is None
    assert chunks.event(0, CompletionOutput(logprobs=[{1: Logprob(-1.0, 1)}])) is None
