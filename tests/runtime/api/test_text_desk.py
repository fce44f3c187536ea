import asyncio
import threading

import pytest

from raydix.errors import BadRequest, PromptTooLong
from raydix.runtime.api.text_desk import TextDesk
from raydix.runtime.api.text_steps import PIECE_CHARACTERS
from raydix.runtime.api.tokenizer import Tokenizer
from tests.runtime.api.small_tokenizers import byte_level_backend
from tests.runtime.api.trained_tokenizers import trained_backend

LIMIT = 4096


@pytest.fixture
async def desk():
    backend = trained_backend("byte_level")
    backend.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    desk = TextDesk(Tokenizer(backend), LIMIT)
    yield desk
    desk.close()


async def test_text_comes_back(desk):
    ids = await desk.encode("Hello world")
    assert ids == desk.tokenizer.encode("Hello world")
    assert await desk.encode_chat([{"role": "user", "content": "Hello world"}], {}) == ids
    assert await desk.decode(ids) == "Hello world"
    texts = await desk.prompt_texts(ids, "Hello world", is_whole=True)
    assert "".join(texts) == "Hello world"


async def test_one_tenants_long_texts_do_not_hold_up_anothers(desk, monkeypatch):
    """A long step of each is held until the other tenant has been answered."""
    is_answered, encoded = threading.Event(), desk.tokenizer._encoded

    def slow(text, with_special):
        if len(text) >= PIECE_CHARACTERS:
            is_answered.wait()
        return encoded(text, with_special)

    monkeypatch.setattr(desk.tokenizer, "_encoded", slow)
    text = "Hello world " * 1000
    long_ones = [asyncio.ensure_future(desk.encode(text, "beta")) for _ in range(12)]
    assert await desk.encode("hi", "alpha") == desk.tokenizer.encode("hi")
    assert not any(each.done() for each in long_ones)
    is_answered.set()
    assert {len(each) for each in await asyncio.gather(*long_ones)} == {2001}


@pytest.mark.parametrize("unit", ["7", "the ", "日本"])
async def test_what_is_longer_than_the_context_is_refused(desk, unit):
    with pytest.raises(PromptTooLong, match="more than 4096 tokens"):
        await desk.encode(unit * (1 << 20), "beta")
    message = {"role": "user", "content": unit * (1 << 20)}
    with pytest.raises(PromptTooLong, match="more than 4096 tokens"):
        await desk.encode_chat([message], {}, "beta")


async def test_more_messages_than_the_context_has_tokens_meet_no_template(desk):
    with pytest.raises(PromptTooLong):
        await desk.encode_chat([{"role": "user", "content": ""}] * (LIMIT + 1), {})


async def test_without_a_tokenizer_everything_is_refused():
    desk = TextDesk(None, LIMIT)
    with pytest.raises(BadRequest, match="put the tokenizer's files"):
        await desk.encode("a")
    with pytest.raises(BadRequest, match="chat needs one"):
        await desk.encode_chat([], {})
    with pytest.raises(BadRequest, match=r"text needs one\. Put the tokenizer"):
        await desk.decode([1])
    desk.close()


async def test_memory_of_long_texts_is_given_back():
    """The texts are some that cannot be refused before they are tokenised, nor cut."""
    backend = byte_level_backend()
    desk = TextDesk(Tokenizer(backend), 1 << 22)
    assert not desk.tokenizer._text_steps.can_be_cut
    await desk.encode("a" * PIECE_CHARACTERS)
    before = resident_bytes()
    text = "ab" * (1 << 18)
    assert len(await desk.encode(text)) == len(text)
    assert resident_bytes() < before + (24 << 20)
    desk.close()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
