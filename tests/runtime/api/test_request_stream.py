import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.errors import BadRequest, DeadlineExceeded, EngineDead, Overloaded, PromptTooLong
from raydix.ids import AskingId, RequestId
from raydix.runtime.api.outputs import Logprob
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FailureKind, FinishReason, RequestDelta, RequestFailure
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs
from tests.runtime.api.small_tokenizers import byte_token_tokenizer

EOS = 256


TOKENIZER = byte_token_tokenizer()


def make_stream(tokenizer=TOKENIZER, prompt_token_ids=(1, 2), **params):
    sampling = SamplingParams(**params)
    request = StreamedRequest(
        request_id=RequestId("r"),
        prompt="hi",
        prompt_token_ids=list(prompt_token_ids),
        params=sampling,
        ending_token_ids=frozenset(sampling.ending_token_ids((EOS,))),
        submitted_s=10.0,
    )
    return RequestStream(request, tokenizer)


def delta(text_or_ids=(), **fields):
    token_ids = TOKENIZER.encode(text_or_ids) if isinstance(text_or_ids, str) else text_or_ids
    return RequestDelta(
        asking=AskingId(1), request_id=RequestId("r"), token_ids=int32_array(token_ids), **fields
    )


def outputs_of(stream, deltas):
    outputs = []
    for each in deltas:
        stream.push(each, now_s=11.0)
        output = stream.take()
        if output is not None:
            outputs.append(output)
    return outputs


def test_cumulative_outputs_hold_all_so_far():
    outputs = outputs_of(make_stream(), [delta("ab"), delta("c", finished=FinishReason.LENGTH)])
    assert [each.outputs[0].text for each in outputs] == ["ab", "abc"]
    assert [each.finished for each in outputs] == [False, True]
    assert outputs[0].outputs[0].token_ids == TOKENIZER.encode("ab")
    assert outputs[1].outputs[0].finish_reason == "length"


def test_delta_outputs_hold_what_is_new():
    stream = make_stream(output_kind="delta")
    outputs = outputs_of(stream, [delta("ab"), delta("c"), delta(finished=FinishReason.STOP)])
    assert [each.outputs[0].text for each in outputs] == ["ab", "c", ""]
    assert [len(each.outputs[0].token_ids) for each in outputs] == [2, 1, 0]
    assert [each.finished for each in outputs] == [False, False, True]


def test_the_final_output_comes_once():
    stream = make_stream(output_kind="final")
    (output,) = outputs_of(stream, [delta("ab"), delta("c", finished=FinishReason.LENGTH)])
    assert (output.outputs[0].text, output.finished) == ("abc", True)


def test_deltas_between_two_takes_are_merged():
    stream = make_stream(output_kind="delta")
    for each in (delta("ab"), delta("cd"), delta("e")):
        stream.push(each, 11.0)
    assert stream.take().outputs[0].text == "abcde"
    assert stream.take() is None


def test_nothing_is_ready_before_a_final_output():
    stream = make_stream(output_kind="final")
    stream.push(delta("ab"), 11.0)
    assert not stream.is_ready
    stream.push(delta(finished=FinishReason.LENGTH), 11.0)
    assert stream.is_ready


def test_an_earlier_output_does_not_change_later():
    stream = make_stream()
    first, _ = outputs_of(stream, [delta("a"), delta("b")])
    assert first.outputs[0].text == "a"
    assert len(first.outputs[0].token_ids) == 1


def test_eos_is_among_the_ids_but_not_in_the_text():
    stream = make_stream(skip_special_tokens=False)
    (output,) = outputs_of(
        stream, [delta([*TOKENIZER.encode("ab"), EOS], finished=FinishReason.STOP)]
    )
    assert output.outputs[0].token_ids[-1] == EOS
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].stop_reason is None


@pytest.mark.parametrize(("keeps", "text"), [(False, "a"), (True, "ab")])
@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_a_stop_token_is_the_stop_reason(keeps, text, stop):
    (b,) = TOKENIZER.encode("b")
    stream = make_stream(stop_token_ids=[b], include_stop_str_in_output=keeps, stop=stop)
    (output,) = outputs_of(stream, [delta("ab", finished=FinishReason.STOP)])
    assert output.outputs[0].text == text
    assert output.outputs[0].stop_reason == b


def test_a_stop_string_ends_text_and_ids():
    stream = make_stream(stop=["END"])
    assert stream.push(delta("xxENDyyy"), 0.0)
    output = stream.take()
    assert output is not None
    assert output.finished
    assert output.outputs[0].text == "xx"
    assert output.outputs[0].token_ids == TOKENIZER.encode("xxEND")
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "END")


def test_what_follows_a_stop_string_is_ignored():
    stream = make_stream(stop=["END"])
    outputs = outputs_of(stream, [delta("xEND"), delta("more"), delta(finished=FinishReason.STOP)])
    assert len(outputs) == 1


def test_a_stop_string_in_the_last_delta_wins_over_length():
    stream = make_stream(stop=["END"])
    (output,) = outputs_of(stream, [delta("xENDy", finished=FinishReason.LENGTH)])
    assert output.outputs[0].finish_reason == "stop"


def test_a_possible_stop_string_is_shown_at_the_end():
    stream = make_stream(stop=["END"])
    outputs = outputs_of(stream, [delta("xEN"), delta(finished=FinishReason.LENGTH)])
    assert [each.outputs[0].text for each in outputs] == ["x", "xEN"]


def test_a_stop_string_does_not_count_before_min_tokens():
    stream = make_stream(stop=["b"], min_tokens=3)
    (output,) = outputs_of(stream, [delta("abacbd")])
    assert output.outputs[0].text == "abac"


def test_an_unfinished_character_is_shown_at_the_end():
    token_ids = TOKENIZER.encode("a€")[:-1]
    outputs = outputs_of(make_stream(), [delta(token_ids), delta(finished=FinishReason.LENGTH)])
    assert [each.outputs[0].text for each in outputs] == ["a", "a\N{REPLACEMENT CHARACTER}"]


def test_without_a_tokenizer_there_are_ids_alone():
    stream = make_stream(tokenizer=None)
    (output,) = outputs_of(stream, [delta([5, 6], finished=FinishReason.LENGTH)])
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [5, 6])


def test_sources_and_times_are_reported():
    stream = make_stream()
    sources = {"l1": 3, "l2": 4, "l3": 5, "computed:last_token": 1}
    stream.push(delta("a", cached_tokens_by_source=sources, queued_s=0.25), now_s=10.5)
    first = stream.take()
    stream.push(delta("b", finished=FinishReason.LENGTH), now_s=12.0)
    last = stream.take()

    assert first.num_cached_tokens == last.num_cached_tokens == 12
    assert first.metrics.cached_tokens_by_source == sources
    assert (
        first.metrics.queued_s,
        first.metrics.time_to_first_token_s,
        first.metrics.latency_s,
    ) == (0.25, 0.5, None)
    assert (
        last.metrics.time_to_first_token_s,
        last.metrics.latency_s,
        last.metrics.num_output_tokens,
    ) == (0.5, 2.0, 2)


def test_logprobs_are_dicts_from_id_to_logprob():
    a, b = TOKENIZER.encode("ab")
    stream = make_stream(logprobs=2, output_kind="delta")
    entry = TokenLogprobs(token_ids=(a, b, a), logprobs=(-2.0, -1.0, -2.0), ranks=(2, 1, 2))
    first, second = outputs_of(
        stream, [delta([a], logprobs=(entry,)), delta([a], logprobs=(entry,))]
    )
    assert first.outputs[0].logprobs == [{a: Logprob(-2.0, 2, "a"), b: Logprob(-1.0, 1, "b")}]
    assert second.outputs[0].logprobs == first.outputs[0].logprobs
    assert first.outputs[0].cumulative_logprob == second.outputs[0].cumulative_logprob == -2.0


def test_logprobs_end_with_the_stop_string():
    token_ids = TOKENIZER.encode("abc")
    entries = tuple(
        TokenLogprobs(token_ids=(each,), logprobs=(-1.0,), ranks=(1,)) for each in token_ids
    )
    stream = make_stream(logprobs=0, stop="b")
    (output,) = outputs_of(stream, [delta(token_ids, logprobs=entries)])
    assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids) == 2
    assert output.outputs[0].cumulative_logprob == -2.0


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.BAD_REQUEST, BadRequest),
        (FailureKind.PROMPT_TOO_LONG, PromptTooLong),
        (FailureKind.OVERLOADED, Overloaded),
        (FailureKind.DEADLINE_EXCEEDED, DeadlineExceeded),
        (FailureKind.ENGINE_DEAD, EngineDead),
    ],
)
def test_a_failure_becomes_the_typed_error(kind, error):
    stream = make_stream()
    stream.push(
        delta(failure=RequestFailure(kind=kind, message="because", retry_after_s=2.0)), 11.0
    )
    assert type(stream.failure) is error
    assert str(stream.failure) == "because"
    assert stream.take() is None


def test_overloaded_says_when_to_come_back():
    stream = make_stream()
    failure = RequestFailure(kind=FailureKind.OVERLOADED, message="full", retry_after_s=2.5)
    stream.push(delta(failure=failure), 11.0)
    assert stream.failure.retry_after_s == 2.5


def test_deadline_exceeded_carries_all_of_the_output():
    stream = make_stream(output_kind="delta")
    outputs_of(stream, [delta("ab")])
    stream.push(
        delta("c", failure=RequestFailure(kind=FailureKind.DEADLINE_EXCEEDED, message="late")), 11.0
    )
    assert stream.failure.partial.outputs[0].text == "abc"
    assert not stream.failure.partial.finished
    assert stream.take().outputs[0].text == "c"


def test_a_finished_stream_cannot_fail():
    stream = make_stream()
    outputs = outputs_of(stream, [delta("a", finished=FinishReason.LENGTH)])
    stream.fail(EngineDead("gone"))
    assert stream.failure is None
    assert outputs[0].finished


@settings(max_examples=300)
@given(
    token_ids=st.lists(st.integers(0, 12), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    stop=st.lists(st.text('!"#$%', min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 4),
)
def test_the_output_does_not_depend_on_how_deltas_are_cut(token_ids, cuts, stop, min_tokens):
    def run(bounds, kind):
        stream = make_stream(stop=stop, min_tokens=min_tokens, output_kind=kind)
        pieces = [
            token_ids[low:high]
            for low, high in zip([0, *bounds], [*bounds, len(token_ids)], strict=True)
        ]
        return outputs_of(stream, [*map(delta, pieces), delta(finished=FinishReason.LENGTH)])

    def end(output):
        return output.outputs[0].text, output.outputs[0].token_ids, output.outputs[0].stop_reason

    (whole,) = run([], "final")
    bounds = sorted(each for each in cuts if each <= len(token_ids))
    assert end(run(bounds, "cumulative")[-1]) == end(whole)
    deltas = run(bounds, "delta")
    assert "".join(each.outputs[0].text for each in deltas) == whole.outputs[0].text
    assert [i for each in deltas for i in each.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert [each.finished for each in deltas].count(True) == 1
    if not stop:
        assert whole.outputs[0].text == TOKENIZER.decode(token_ids, skip_special_tokens=True)


def prompt_run(start, *places):
    """Each place: the token's own logprob and rank, and the likeliest token with its logprob."""
    logprobs, ranks, top_ids, top_logprobs = zip(*places, strict=True)
    return PromptLogprobs(
        start=start,
        logprob_bits=bits(logprobs),
        ranks=int32_array(ranks),
        num_top=1,
        top_ids=int32_array(top_ids),
        top_logprob_bits=bits(top_logprobs),
    )


def bits(values):
    return int32_array(np.array(values, dtype=np.float32).view(np.int32))


@pytest.mark.parametrize("output_kind", ["cumulative", "delta", "final"])
def test_prompt_logprobs_come_whole_with_the_first_output(output_kind):
    (a,) = TOKENIZER.encode("a")
    first, second, third = TOKENIZER.encode("hey")
    stream = make_stream(
        prompt_logprobs=1, output_kind=output_kind, prompt_token_ids=(first, second, third)
    )
    stream.push(delta("", prompt_logprobs=(prompt_run(1, (-2.0, 4, a, -0.5)),)), 11.0)
    assert stream.take() is None
    outputs = outputs_of(
        stream,
        [
            delta("a", prompt_logprobs=(prompt_run(2, (-0.25, 1, third, -0.25)),)),
            delta("b", finished=FinishReason.LENGTH),
        ],
    )

    told = [
        None,
        {second: Logprob(-2.0, 4, "e"), a: Logprob(-0.5, 1, "a")},
        {third: Logprob(-0.25, 1, "y")},
    ]
    expected = {"cumulative": [told, told], "delta": [told, None], "final": [told]}
    assert [each.prompt_logprobs for each in outputs] == expected[output_kind]


def test_nobody_who_did_not_ask_has_prompt_logprobs():
    (output,) = outputs_of(
        make_stream(output_kind="final"), [delta("a", finished=FinishReason.LENGTH)]
    )
    assert output.prompt_logprobs is None
