"""What another node's HostMemory may say over a link. No I/O.

Both ends know the secret, so neither is a stranger; but the core takes what it is told at its word,
and one faulty node must not bring others down. Whoever says what it may not loses its link.
"""

from collections.abc import Sequence

from raydix.ids import BatchId
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.messages.host import AskExists, CancelBatch, ObjectsDone, ObjectStatus
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages, TellKeys, ToPeer

MAX_OPEN_PULLS = 64
"""The most batches that one reader may wait for; ours ask for a few at a time."""
MAX_PULLED_PAGES = 256
"""The most pages of one pull: what is asked for is pinned, and must leave room for others."""
_STATUSES = frozenset(ObjectStatus)


class ReaderJudge:
    """Owns: which batch ids a reader has used."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._last: BatchId | None = None

    def check(self, message: object, num_open_pulls: int) -> ToPeer:
        """What a reader says, if it may; it waits for so many pulls. Raises PeerMisbehaves."""
        match message:
            case TellKeys() | CancelBatch():
                pass
            case AskExists():
                self._check_batch(message.batch_id, message.group, message.keys)
            case PullPages():
                self._check_batch(message.batch_id, message.group, message.keys)
                num_pages = len(message.keys) // KEY_BYTES
                if num_pages > MAX_PULLED_PAGES or num_open_pulls >= MAX_OPEN_PULLS:
                    raise PeerMisbehaves(
                        f"a reader asks for {num_pages} pages while it waits for {num_open_pulls} "
                        f"batches; expected at most {MAX_PULLED_PAGES} and {MAX_OPEN_PULLS - 1}"
                    )
                # Each page is pinned once while it is sent.
                if (num_distinct := len(set(split_keys(message.keys)))) < num_pages:
                    raise PeerMisbehaves(
                        f"a reader asks for {num_pages} pages, of which {num_distinct} differ, in "
                        f"batch {message.batch_id}; expected each page once"
                    )
            case _:
                raise PeerMisbehaves(f"a reader sends a {type(message).__name__}")
        return message

    def _check_batch(self, batch_id: BatchId, group: int, keys: bytes) -> None:
        if self._last is not None and batch_id <= self._last:
            raise PeerMisbehaves(f"a reader uses batch {batch_id} after {self._last}")
        self._last = batch_id
        _check_keys(group, self._num_groups, [keys], KEY_BYTES)
        if not keys:
            raise PeerMisbehaves(f"a reader asks for no page in batch {batch_id}")


class PeerJudge:
    """Owns: which questions a peer has yet to answer."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._questions: dict[BatchId, int] = {}
        """The number of pages for which each question was asked."""

    def ask(self, question: AskExists) -> None:
        """Note a question that the peer is asked."""
        self._questions[question.batch_id] = len(question.keys) // KEY_BYTES

    def check(self, message: object) -> ObjectsDone | MirrorUpdate:
        """What a peer says, if it may. Raises PeerMisbehaves."""
        match message:
            case ObjectsDone():
                expected = self._questions.pop(message.batch_id, None)
                if len(message.statuses) != expected or not _STATUSES.issuperset(message.statuses):
                    raise PeerMisbehaves(
                        f"a peer answers batch {message.batch_id} with statuses "
                        f"{message.statuses[:16]!r} for {len(message.statuses)} pages; expected "
                        f"{'no answer' if expected is None else f'statuses of {expected}'}"
                    )
            case MirrorUpdate():
                keys = [message.ready, message.dropped]
                _check_keys(message.group, self._num_groups, keys, MIRROR_KEY_BYTES)
            case _:
                raise PeerMisbehaves(f"a peer sends a {type(message).__name__}")
        return message


def _check_keys(group: int, num_groups: int, keys: Sequence[bytes], width: int) -> None:
    if not 0 <= group < num_groups:
        raise PeerMisbehaves(f"the other node speaks of KV group {group}; there are {num_groups}")
    if any(len(each) % width for each in keys):
        raise PeerMisbehaves(
            f"keys of {[len(each) for each in keys]} bytes come; expected multiples of {width}"
        )
