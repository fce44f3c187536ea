"""A prompt's logprobs look like a list, and are made when they are read."""

import pickle

import numpy as np
import pytest

from raydix.runtime.api.outputs import Logprob
from raydix.runtime.api.prompt_logprobs import PromptEntries
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import PromptLogprobs

PROMPT = [5, 6, 7, 8, 9]


def bits(values: list[float]) -> Int32Array:
    return int32_array(np.array(values, dtype=np.float32).view(np.int32))


def entries_of(decoded: list[int] | None = None) -> PromptEntries:
    """Five tokens in two runs; `decoded` hears which tokens are made text."""

    def decode(token_id: int) -> str:
        if decoded is not None:
            decoded.append(token_id)
        return str(token_id)

    entries = PromptEntries(PROMPT, decode)
    for start, num_tokens in ((1, 3), (4, 1)):
        entries.add(
            PromptLogprobs(
                start=start,
                logprob_bits=bits([-float(start + i) for i in range(num_tokens)]),
                ranks=int32_array(range(10, 10 + num_tokens)),
                num_top=1,
                top_ids=int32_array([99] * num_tokens),
                top_logprob_bits=bits([-0.5] * num_tokens),
            )
        )
    return entries


def entry(token_id: int, logprob: float, rank: int) -> dict[int, Logprob]:
    return {token_id: Logprob(logprob, rank, str(token_id)), 99: Logprob(-0.5, 1, "99")}


WHOLE = [None, entry(6, -1.0, 10), entry(7, -2.0, 11), entry(8, -3.0, 12), entry(9, -4.0, 10)]


def test_it_is_read_like_a_list() -> None:
    entries = entries_of()
    assert entries == WHOLE
    assert len(entries) == 5
    assert (entries[-1], entries[1:3]) == (WHOLE[4], WHOLE[1:3])
    assert entries != WHOLE[:4]
    with pytest.raises(IndexError):
        entries[5]
    with pytest.raises(IndexError):
        entries[-6]


def test_only_what_is_read_is_made() -> None:
    decoded: list[int] = []
    entries = entries_of(decoded)
    assert decoded == []
    assert entries[4] == WHOLE[4]
    assert decoded == [9, 99]


def test_pickled_it_is_a_list() -> None:
    assert pickle.loads(pickle.dumps(entries_of())) == WHOLE


def test_a_gap_is_an_error() -> None:
    entries = PromptEntries(PROMPT, str)
    with pytest.raises(AssertionError, match="in order"):
        entries.add(
            PromptLogprobs(start=2, logprob_bits=bits([1.0]), ranks=int32_array([1]), num_top=0)
        )
