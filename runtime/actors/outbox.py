"""News for one client, in frames of bounded size.

While the client does not read, its news is merged; when it is too much, its link is closed.
"""

import logging

import numpy as np

from raydix.ids import AskingId
from raydix.runtime.actors.links.link import CLIENT_MAX_BUFFERED_BYTES, Link, LinkClosed
from raydix.runtime.cache.page_key import TOKEN_BYTES
from raydix.runtime.messages.arrays import Int32Array, Int64Array, empty, int32_array
from raydix.runtime.messages.client import RequestDelta, TokenFrame
from raydix.runtime.messages.codec import MessageError
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs, prompt_logprob_bytes

logger = logging.getLogger(__name__)

BUSY_BYTES = 256 << 10
"""The unsent bytes from which on news is merged instead of queued in frames of its own."""
FRAME_BYTES = 1 << 20
"""The size up to which a frame takes deltas; a single delta alone may exceed it."""

# About what the parts of a delta take on the wire, rounded up.
_DELTA_BYTES = 128
_COLUMN_BYTES = 12
_LOGPROBS_BYTES = 16
_LOGPROB_BYTES = 24
_SOURCE_BYTES = 48
_CHARACTER_BYTES = 4


class _News:
    """Owns: what the client of one asking has not been sent.

    Taking a delta costs what that delta holds, however many wait.
    """

    def __init__(self, delta: RequestDelta) -> None:
        self._last = delta
        self._tokens = bytearray()
        self._logprobs: list[TokenLogprobs | None] = []
        self._prompt_logprobs: list[PromptLogprobs] = []
        self._sources: dict[str, int] | None = None
        self._queued_s: float | None = None
        self.num_bytes = _DELTA_BYTES + _CHARACTER_BYTES * len(delta.request_id)

    def add(self, delta: RequestDelta) -> None:
        """Take newer news.

        Of several deltas with sources the first one counts, as it tells of the admission.
        """
        self._last = delta
        self._tokens += delta.token_ids.astype("<i4", copy=False).tobytes()
        self._logprobs += delta.logprobs
        self._prompt_logprobs += delta.prompt_logprobs
        self.num_bytes += _size_of_news(delta)

        if self._sources is None:
            self._sources = delta.cached_tokens_by_source
        if self._queued_s is None:
            self._queued_s = delta.queued_s

    def add_token(self, token_id: int) -> None:
        """Take one more token."""
        self._tokens += token_id.to_bytes(TOKEN_BYTES, "little")
        self.num_bytes += TOKEN_BYTES

    def as_delta(self) -> RequestDelta:
        """One delta that says all, in order."""
        last = self._last
        return RequestDelta(
            asking=last.asking,
            request_id=last.request_id,
            token_ids=np.frombuffer(bytes(self._tokens), dtype="<i4"),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
            cached_tokens_by_source=self._sources,
            queued_s=self._queued_s,
            num_pinned_tokens=last.num_pinned_tokens,
            finished=last.finished,
            failure=last.failure,
        )


def _size_of_news(delta: RequestDelta) -> int:
    """Bytes of what a delta adds to its asking's news, about."""
    num_bytes = TOKEN_BYTES * len(delta.token_ids)
    for entry in delta.logprobs:
        num_bytes += _LOGPROBS_BYTES + (
            0 if entry is None else _LOGPROB_BYTES * len(entry.token_ids)
        )

    for run in delta.prompt_logprobs:
        num_bytes += _LOGPROBS_BYTES + prompt_logprob_bytes(len(run), run.num_top)

    num_bytes += _SOURCE_BYTES * len(delta.cached_tokens_by_source or ())
    if delta.failure is not None:
        num_bytes += _CHARACTER_BYTES * len(delta.failure.message)
    return num_bytes


class ClientOutbox:
    """Owns: what one client has not been sent yet.

    Single tokens go into columns. Once an asking has a delta waiting, all that follows of it joins
    the delta.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.was_too_slow = False
        """Whether the link was closed because the client did not read."""
        self._news: dict[AskingId, _News] = {}
        self._columns: list[tuple[Int64Array, Int32Array]] = []
        self._num_bytes = 0

    def add(self, delta: RequestDelta) -> None:
        """Take news of one asking; nothing happens once the link is closed."""
        if self.link.is_closed:
            return

        news = self._news.get(delta.asking)
        if news is None:
            news = self._news[delta.asking] = _News(delta)
            self._num_bytes += news.num_bytes

        before = news.num_bytes
        news.add(delta)
        self._num_bytes += news.num_bytes - before

    def add_tokens(self, askings: Int64Array, token_ids: Int32Array) -> None:
        """Take one more token of each of these askings; nothing happens once the link is closed."""
        if self.link.is_closed:
            return

        if self._news:
            # Deltas go out after the columns, so a token that follows a waiting delta must join it.
            waits = np.isin(askings, np.fromiter(self._news, dtype=np.int64))
            for asking, token in zip(
                askings[waits].tolist(), token_ids[waits].tolist(), strict=True
            ):
                self._news[asking].add_token(token)
            self._num_bytes += TOKEN_BYTES * int(waits.sum())
            askings, token_ids = askings[~waits], token_ids[~waits]

        if len(askings):
            self._columns.append((askings, token_ids))
            self._num_bytes += _COLUMN_BYTES * len(askings)

    def flush(self) -> bool:
        """Send what the link takes. False: the client is slow and some news stays here for now.

        A client whose link closes loses its news: its reader ends as well and its requests are
        aborted.
        """
        while self._has_news and not self.link.is_closed and self.link.buffered_bytes <= BUSY_BYTES:
            self._send(self._next_frame())

        owed_bytes = self._num_bytes + self.link.buffered_bytes
        if self._has_news and owed_bytes > CLIENT_MAX_BUFFERED_BYTES and not self.link.is_closed:
            logger.warning(
                "%s does not read: %d bytes wait for it; its link is closed",
                self.link.hello,
                owed_bytes,
            )
            self.was_too_slow = True
            self.link.close()

        if self.link.is_closed:
            self._news.clear()
            self._columns.clear()
            self._num_bytes = 0
        return not self._has_news

    @property
    def _has_news(self) -> bool:
        return bool(self._columns or self._news)

    def _next_frame(self) -> TokenFrame:
        """The oldest news, as much as goes into one frame."""
        askings, token_ids = self._next_columns()
        deltas: list[RequestDelta] = []
        num_bytes = _COLUMN_BYTES * len(askings)
        for asking, news in list(self._news.items()) if not self._columns else ():
            if num_bytes and num_bytes + news.num_bytes > FRAME_BYTES:
                break
            del self._news[asking]
            num_bytes += news.num_bytes
            deltas.append(news.as_delta())

        self._num_bytes -= num_bytes
        return TokenFrame(askings=askings, token_ids=token_ids, deltas=tuple(deltas))

    def _next_columns(self) -> tuple[tuple[AskingId, ...], Int32Array]:
        """The oldest single tokens, as many as go into one frame; what is left waits on."""
        if not self._columns:
            return (), empty()
        askings = np.concatenate([column for column, _ in self._columns])
        token_ids = np.concatenate([column for _, column in self._columns])
        self._columns.clear()

        num_taken = FRAME_BYTES // _COLUMN_BYTES
        if len(askings) > num_taken:
            self._columns.append((askings[num_taken:], token_ids[num_taken:]))
        return tuple(askings[:num_taken].tolist()), int32_array(token_ids[:num_taken])

    def _send(self, frame: TokenFrame) -> None:
        try:
            self.link.send(frame)
        except LinkClosed:
            return
        except MessageError:
            # What this client asked for cannot travel: that ends its link and nobody else's.
            logger.exception("closing the link to %s", self.link.hello)
            self.link.close()
