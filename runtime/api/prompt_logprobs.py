"""Logprobs of a prompt as a caller receives them, from the columns that messages carry."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from raydix.runtime.api.outputs import Logprob, PromptEntry
from raydix.runtime.messages.plan import PromptLogprobs


class PromptEntries(Sequence[PromptEntry]):
    """One entry per token of a prompt: a dict from token id to Logprob, the token itself first.

    Of the first token it is None. Entries are made when they are read: to make those of a long
    prompt at once would hold up every stream of the client. Unpickled, it is a list.

    Owns: the runs of the prompt that have come.
    """

    def __init__(
        self, prompt_token_ids: Sequence[int], decode: Callable[[int], str | None]
    ) -> None:
        """`decode`: a token's text, if there is any."""
        self._token_ids = prompt_token_ids
        self._decode = decode
        self._starts: list[int] = []
        self._runs: list[PromptLogprobs] = []
        self._num_entries = 1

    def add(self, run: PromptLogprobs) -> None:
        """Take the next run."""
        assert run.start == self._num_entries, "the engine tells each token once, in order"
        self._starts.append(run.start)
        self._runs.append(run)
        self._num_entries += len(run)

    def __len__(self) -> int:
        return self._num_entries

    @overload
    def __getitem__(self, index: int) -> PromptEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[PromptEntry]: ...

    def __getitem__(self, index: int | slice) -> PromptEntry | list[PromptEntry]:
        if isinstance(index, slice):
            return [self._entry(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        return self._entry(place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PromptEntries({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _entry(self, place: int) -> PromptEntry:
        if place == 0:
            return None
        number = bisect.bisect_right(self._starts, place) - 1
        run, row = self._runs[number], place - self._starts[number]
        token_id = self._token_ids[place]
        logprob = float(run.logprob_bits[row : row + 1].view(np.float32)[0])
        entry = {token_id: Logprob(logprob, int(run.ranks[row]), self._decode(token_id))}

        tops = slice(row * run.num_top, (row + 1) * run.num_top)
        top_logprobs = run.top_logprob_bits[tops].view(np.float32).tolist()
        top_ids = run.top_ids[tops].tolist()
        for rank, (top_id, top) in enumerate(zip(top_ids, top_logprobs, strict=True), 1):
            entry[top_id] = Logprob(top, rank, self._decode(top_id))
        return entry
