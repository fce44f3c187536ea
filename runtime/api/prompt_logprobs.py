"""Logprobs of a prompt as a caller receives them, from the columns that messages carry."""

from collections.abc import Callable, Sequence

import numpy as np

from raydix.runtime.api.outputs import Logprob
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import PromptLogprobs


def prompt_entries(
    prompt_token_ids: Sequence[int], run: PromptLogprobs, decode: Callable[[int], str | None]
) -> list[dict[int, Logprob]]:
    """One dict per token of a run, the token itself first. `decode`: a token's text, if any."""
    token_ids = prompt_token_ids[run.start : run.start + len(run)]
    assert len(token_ids) == len(run), "the engine scores no more than the prompt"
    tops = np.arange(len(run)) * run.num_top

    columns = zip(
        token_ids, _floats(run.logprob_bits), run.ranks.tolist(), tops.tolist(), strict=True
    )
    top_ids, top_logprobs = run.top_ids.tolist(), _floats(run.top_logprob_bits)
    entries = []
    for token_id, logprob, rank, first in columns:
        entry = {token_id: Logprob(logprob, rank, decode(token_id))}
        for place in range(run.num_top):
            top_id = top_ids[first + place]
            entry[top_id] = Logprob(top_logprobs[first + place], place + 1, decode(top_id))
        entries.append(entry)
    return entries


def _floats(bits: Int32Array) -> list[float]:
    values: list[float] = bits.view(np.float32).tolist()
    return values
