"""Chunks that bring new text and nothing else: all of a stream but its first and last ones.

They differ in their text and token ids alone, so that what is around them is written once.
"""

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import NamedTuple

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.server.event_stream import data_event, in_one_line
from raydix.runtime.server.wire.base import WireAnswer

_TEXT = "<text of this chunk>"
_TOKEN_IDS = '"token_ids":[]'

MakeChunk = Callable[[int, CompletionOutput], WireAnswer]
"""Makes the chunk of a choice from a new output that is not its first."""


class _Around(NamedTuple):
    """The text of a chunk before its text, between that and the token ids, and after them."""

    before: str
    between: str
    after: str


class PlainChunks:
    """Owns: what is around the text, by choice."""

    def __init__(self, make_chunk: MakeChunk) -> None:
        self._make_chunk = make_chunk
        self._around: dict[int, _Around] = {}

    def event(self, index: int, new: CompletionOutput) -> bytes | None:
        """The event with new output of choice `index`; None if there is more to it than text."""
        if new.finish_reason is not None or new.logprobs is not None:
            return None
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._look_around(index)

        text = around.before + in_one_line(encode_basestring(new.text)) + around.between
        if around.after:
            text += _numbers(new.token_ids) + around.after
        return text.encode()

    def _look_around(self, index: int) -> _Around:
        """Write one chunk in full, to see where its text and token ids are."""
        chunk = data_event(self._make_chunk(index, CompletionOutput(text=_TEXT))).decode()
        # From the end: a model's name may hold anything.
        before, _, rest = chunk.rpartition(encode_basestring(_TEXT))
        between, found, after = rest.partition(_TOKEN_IDS)
        if not found:
            return _Around(before, between, "")
        return _Around(before, between + found[:-2], after)


def _numbers(token_ids: Sequence[int]) -> str:
    return f"[{','.join(map(str, token_ids))}]"


class SaidChunks:
    """Owns: what is around the text of chunks that say one thing, by choice and by fields.

    The text may stand in several fields of a delta, each of which has all of it.
    """

    def __init__(self, make_chunk: Callable[[int, dict[str, str]], WireAnswer]) -> None:
        """`make_chunk`: makes the chunk of a choice whose delta has these fields."""
        self._make_chunk = make_chunk
        self._around: dict[tuple[int, tuple[str, ...]], list[str]] = {}

    def event(self, index: int, fields: tuple[str, ...], text: str) -> bytes:
        """The event with what choice `index` says next."""
        around = self._around.get((index, fields))
        if around is None:
            told = data_event(self._make_chunk(index, dict.fromkeys(fields, _TEXT))).decode()
            # From the end: a model's name may hold anything.
            around = told.rsplit(encode_basestring(_TEXT), len(fields))
            self._around[index, fields] = around
        return in_one_line(encode_basestring(text)).join(around).encode()
