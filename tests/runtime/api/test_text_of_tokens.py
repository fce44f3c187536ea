"""What a request's text is, for every kind of tokenizer: what its tokens say behind the prompt."""

import functools
import itertools
import random

import pytest

from raydix.ids import AskingId, RequestId
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FinishReason, RequestDelta
from raydix.runtime.messages.plan import TokenLogprobs
from tests.runtime.api.trained_tokenizers import BYTES, KINDS, drawn_texts, trained_backend

NUM_TEXTS = 500


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(trained_backend(kind))


def cut_tokens(kind, seed):
    """Drawn texts as tokens, each cut somewhere into a prompt and an output."""
    rng = random.Random(seed)
    tokenizer = tokenizer_of(kind)
    for text in drawn_texts(seed, NUM_TEXTS):
        token_ids = tokenizer.encode(text)
        if len(token_ids) >= 2:
            cut = rng.randint(1, len(token_ids) - 1)
            yield token_ids[:cut], token_ids[cut:], rng


def stream_of(kind, prompt, **params):
    sampling = SamplingParams(max_tokens=10_000, **params)
    request = StreamedRequest(
        request_id=RequestId("r"),
        prompt=None,
        prompt_token_ids=prompt,
        params=sampling,
        ending_token_ids=frozenset(),
        submitted_s=0.0,
    )
    return RequestStream(request, tokenizer_of(kind))


def outputs_of(stream, pieces, *, with_logprobs):
    """What is taken after each piece; the end comes by itself."""
    outputs = []
    for piece in [*pieces, []]:
        logprobs = tuple(
            TokenLogprobs(token_ids=(each,), logprobs=(-1.0,), ranks=(1,)) for each in piece
        )
        delta = RequestDelta(
            asking=AskingId(1),
            request_id=RequestId("r"),
            token_ids=int32_array(piece),
            logprobs=logprobs if with_logprobs else (),
            finished=None if piece else FinishReason.LENGTH,
        )
        stream.push(delta, now_s=1.0)
        output = stream.take()
        if output is not None:
            outputs.append(output.outputs[0])
        if stream.has_ended:
            break
    return outputs


def cut(token_ids, rng):
    bounds = sorted({0, len(token_ids), *rng.choices(range(len(token_ids) + 1), k=6)})
    return [token_ids[low:high] for low, high in itertools.pairwise(bounds)]


def behind(tokenizer, prompt, output):
    """`decode(prompt + output)` behind what the prompt alone says for good."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    return tokenizer.decode([*prompt, *output], True)[len(detokenizer.push(prompt)) :]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_text_comes_back_as_the_library_decodes_it(kind):
    tokenizer = tokenizer_of(kind)
    for text in drawn_texts(1, NUM_TEXTS):
        token_ids = tokenizer.encode(text)
        backend = tokenizer._wrapped.backend_tokenizer
        for skips_special in (True, False):
            assert tokenizer.decode(token_ids, skips_special) == backend.decode(
                token_ids, skip_special_tokens=skips_special
            )


@pytest.mark.parametrize("kind", KINDS)
def test_joined_stream_and_whole_are_the_decode_behind_the_prompt(kind):
    for prompt, output, rng in cut_tokens(kind, seed=2):
        expected = behind(tokenizer_of(kind), prompt, output)
        streamed = outputs_of(
            stream_of(kind, prompt, output_kind="delta"), cut(output, rng), with_logprobs=False
        )
        (whole,) = outputs_of(
            stream_of(kind, prompt, output_kind="final"), [output], with_logprobs=False
        )
        assert whole.text == expected
        assert "".join(each.text for each in streamed) == expected


def shares_of(output, base=0):
    """The text of each token, by the offsets alone."""
    ends = [*output.text_offsets, base + len(output.text)][1:]
    assert ends or not output.text
    return [
        output.text[start - base : end - base]
        for start, end in zip(output.text_offsets, ends, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_address_the_text_streamed_as_whole(kind):
    for prompt, output, rng in cut_tokens(kind, seed=3):
        text = behind(tokenizer_of(kind), prompt, output)
        at = rng.randrange(len(text)) if text else 0
        stop = [text[at : at + 2]] if text[at : at + 2] and rng.random() < 0.5 else []
        (whole,) = outputs_of(
            stream_of(kind, prompt, stop=stop, logprobs=0, output_kind="final"),
            [output],
            with_logprobs=True,
        )
        streamed = outputs_of(
            stream_of(kind, prompt, stop=stop, logprobs=0, output_kind="delta"),
            cut(output, rng),
            with_logprobs=True,
        )

        assert len(whole.text_offsets) == len(whole.token_ids)
        shares = shares_of(whole)
        assert "".join(shares) == whole.text
        assert all(
            whole.text[start : start + len(share)] == share
            for start, share in zip(whole.text_offsets, shares, strict=True)
        )
        assert [i for each in streamed for i in each.text_offsets] == whole.text_offsets
        assert [i for each in streamed for i in each.token_ids] == whole.token_ids
        # Each piece holds the text of its own tokens, no more and no less.
        base, told = 0, []
        for each in streamed:
            told += shares_of(each, base)
            base += len(each.text)
        assert told == shares


@pytest.mark.parametrize("kind", KINDS)
def test_stops_fire_at_the_first_token_whose_text_has_them(kind):
    for prompt, output, rng in cut_tokens(kind, seed=4):
        tokenizer = tokenizer_of(kind)
        text = behind(tokenizer, prompt, output)
        if not text:
            continue
        at = rng.randrange(len(text))
        stop = text[at : at + rng.randint(1, 4)]
        detokenizer = tokenizer.detokenizer(True, prompt)
        shown = list(itertools.accumulate(detokenizer.push([each]) for each in output))
        first = next((i for i, each in enumerate(shown) if stop in each), len(output) - 1)

        (whole,) = outputs_of(
            stream_of(kind, prompt, stop=[stop], output_kind="final"),
            [output],
            with_logprobs=False,
        )
        assert len(whole.token_ids) == first + 1
        if stop in shown[first]:
            assert whole.text == shown[first].partition(stop)[0]


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma"])
def test_a_newline_as_a_byte_token_is_told_and_stops_at_once(kind):
    tokenizer = tokenizer_of(kind)
    newline = tokenizer._wrapped.get_vocab()[BYTES[10]]
    streamed = outputs_of(
        stream_of(kind, tokenizer.encode("Hello"), output_kind="delta"),
        [[newline]] * 5,
        with_logprobs=False,
    )
    assert [each.text for each in streamed] == ["\n"] * 5 + [""]

    (whole,) = outputs_of(
        stream_of(kind, tokenizer.encode("Hello"), stop=["\n"], output_kind="final"),
        [[newline]] * 5,
        with_logprobs=False,
    )
    assert (whole.text, whole.token_ids) == ("", [newline])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_word_of_the_output_keeps_its_space(kind):
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("Hello")
    output = tokenizer.encode("Hello world")[len(prompt) :]
    (whole,) = outputs_of(
        stream_of(kind, prompt, output_kind="final"), [output], with_logprobs=False
    )
    assert whole.text == " world"
    (stopped,) = outputs_of(
        stream_of(kind, prompt, stop=[" "], output_kind="final"), [output], with_logprobs=False
    )
    assert len(stopped.token_ids) == 1


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma", "byte_level"])
def test_a_character_that_the_prompt_begins_is_completed_by_the_output(kind):
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode("a\U0001f9ff")
    prompt, output = token_ids[:-1], token_ids[-1:]
    (whole,) = outputs_of(
        stream_of(kind, prompt, output_kind="final"), [output], with_logprobs=False
    )
    assert whole.text == behind(tokenizer, prompt, output) == "\U0001f9ff"


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma", "byte_level"])
def test_a_character_has_its_text_with_the_token_that_completes_it(kind):
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("a")
    output = tokenizer.encode("x\U0001f607")
    (whole,) = outputs_of(
        stream_of(kind, prompt, logprobs=0, output_kind="final"), [output], with_logprobs=True
    )
    assert shares_of(whole)[-2:] == ["", "\U0001f607"]
    assert whole.text_offsets[-2:] == [len(whole.text) - 1] * 2


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma"])
def test_what_is_valid_in_a_run_of_bytes_is_told_beside_what_is_not(kind):
    tokenizer = tokenizer_of(kind)
    vocabulary = tokenizer._wrapped.get_vocab()
    run = [vocabulary[BYTES[byte]] for byte in b"\n\xe2\x82\xff\xc3\xa9"]
    prompt = tokenizer.encode("a")
    (whole,) = outputs_of(stream_of(kind, prompt, output_kind="final"), [run], with_logprobs=False)
    assert whole.text == "\n���é"
