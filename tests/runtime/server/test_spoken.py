"""Tokens of reasoning are counted alike however an answer is cut into outputs."""

import codecs
import itertools

from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.reasoning import reasoning_format_of
from raydix.runtime.config.policies import ReasoningFormatName
from raydix.runtime.server.spoken import Spoken

THINK = reasoning_format_of(ReasoningFormatName.THINK, None)
COUNTED = "\nHm ☀.\nSo.☀\n</think>"
SAID = f"\n<think>{COUNTED}\n\nLight ☀."


def spoken_of_bytes() -> Spoken:
    """What a choice says whose tokens are bytes."""
    return Spoken(
        AnswerFormat(reasoning=THINK, tools={}),
        lambda token_id: bytes([token_id]),
        max_calls=None,
        tells_reasoning=True,
        tells_content=True,
    )


def num_reasoning(cuts: list[int]) -> int:
    """The tokens of reasoning in what is said byte by byte, in outputs that end at `cuts`."""
    spoken = spoken_of_bytes()
    decoder = codecs.getincrementaldecoder("utf-8")()
    token_ids = SAID.encode()
    places = [0, *cuts, len(token_ids)]
    for begin, end in itertools.pairwise(places):
        told = token_ids[begin:end]
        spoken.add(CompletionOutput(text=decoder.decode(told), token_ids=list(told)))
    return spoken.num_reasoning_tokens


def test_edges_of_a_long_output_are_where_they_are_in_all_of_it() -> None:
    for length in range(4085, 4105):
        text = f"\n<think>{'a' * length}</think>{'b' * 9000}"
        spoken = spoken_of_bytes()
        spoken.add(CompletionOutput(text=text, token_ids=list(text.encode())))
        assert spoken.num_reasoning_tokens == length + len("</think>")


@given(cuts=st.lists(st.integers(0, len(SAID.encode()))).map(sorted))
def test_the_count_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    assert num_reasoning(cuts) == len(COUNTED.encode())
