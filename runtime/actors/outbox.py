"""News for one client, merged while the client does not read."""

from dataclasses import replace

import numpy as np

from raydix.ids import RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.messages.client import RequestDelta, TokenFrame

BUSY_BYTES = 256 << 10
"""With so much unsent, further deltas are merged instead of queued as frames of their own."""


def merge(older: RequestDelta, newer: RequestDelta) -> RequestDelta:
    """One delta that says what both say, in order."""
    cached = older.cached_tokens_by_source
    return replace(
        newer,
        token_ids=np.concatenate((older.token_ids, newer.token_ids)),
        logprobs=older.logprobs + newer.logprobs,
        cached_tokens_by_source=newer.cached_tokens_by_source if cached is None else cached,
        queued_s=newer.queued_s if older.queued_s is None else older.queued_s,
    )


class ClientOutbox:
    """Owns: what one client has not been sent yet. One delta per request at most."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._deltas: dict[RequestId, RequestDelta] = {}

    def add(self, delta: RequestDelta) -> None:
        """Take news of one request."""
        older = self._deltas.get(delta.request_id)
        self._deltas[delta.request_id] = delta if older is None else merge(older, delta)

    def flush(self) -> bool:
        """Send all as one frame. False: the client is slow and the news stays here for now.

        A client whose link closes meanwhile loses them: its reader ends as well and its requests are aborted.
        """
        if not self._deltas:
            return True
        if self.link.buffered_bytes > BUSY_BYTES:
            return self.link.is_closed
        frame = TokenFrame(deltas=tuple(self._deltas.values()))
        self._deltas.clear()
        try:
            self.link.send(frame)
        except LinkClosed:
            return True
        return True
