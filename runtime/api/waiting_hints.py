"""Hints that engines are told later: once there is a link, or once what they concern has ended."""

from collections.abc import Callable, Collection

from raydix.ids import RequestId
from raydix.runtime.api.engine_line import EngineLines
from raydix.runtime.messages.client import (
    PrefetchPrompt,
    RetainSession,
    SubmitRequest,
    UnpinPrompt,
)

Hint = RetainSession | UnpinPrompt
_Session = tuple[str | None, str]
_MAX_WAITING = 1000
"""The most hints that wait."""


class WaitingHints:
    """Owns: which hints wait, and of which sessions one engine computes what another goes on with.

    A hint concerns what a session leaves behind. An engine that has a request of it waits for that
    to end; but of one that is split the first engine knows but the beginning, and the second one
    nothing yet. So such a session's hint waits here until the request has ended.
    """

    def __init__(self, is_open: Callable[[RequestId], bool]) -> None:
        """`is_open`: whether a request of this name has not ended."""
        self._is_open = is_open
        self._split: dict[RequestId, _Session] = {}
        """The sessions of split requests that have not ended."""
        self._waiting: list[Hint] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiting) >= _MAX_WAITING

    def note_asked(self, sent: SubmitRequest | PrefetchPrompt) -> None:
        """Note what an engine was asked: one that begins anew is split, or is not."""
        if not isinstance(sent, SubmitRequest) or len(sent.earlier_output):
            return
        self._split.pop(sent.request_id, None)
        if sent.goes_on_elsewhere and sent.session_id is not None:
            self._split[sent.request_id] = sent.cache_salt, sent.session_id

    def note_released(self, name: RequestId, lines: EngineLines) -> None:
        """Note that an asking has this id no more, and tell what may be heard by now.

        Unless a later asking has the id, its request has ended.
        """
        if not self._is_open(name):
            self._split.pop(name, None)
        self.tell_due(lines)

    def hold_back(self, hint: Hint) -> bool:
        """Let a hint wait if it comes too soon; False if it may be told now."""
        is_early = _is_early(hint, self._split.values()) and not self.is_full
        if is_early:
            self.add(hint)
        return is_early

    def add(self, hint: Hint) -> None:
        """Let a hint wait."""
        self._waiting.append(hint)

    def tell_due(self, lines: EngineLines) -> None:
        """Tell all engines what they may hear by now, in the order in which it came."""
        if not self._waiting or not lines.up:
            return
        waiting, self._waiting = self._waiting, []
        sessions = {*self._split.values()}
        for hint in waiting:
            if _is_early(hint, sessions):
                self.add(hint)
            else:
                lines.tell_all(hint)

    def clear(self) -> None:
        """Forget them all: nobody will be told."""
        self._waiting.clear()


def _is_early(hint: Hint, split: Collection[_Session]) -> bool:
    """Whether a hint is about one of the sessions that two engines have a request of."""
    return isinstance(hint, RetainSession) and (hint.cache_salt, hint.session_id) in split
