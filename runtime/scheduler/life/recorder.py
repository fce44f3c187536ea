"""A recording of requests as a trace: what was asked when, with salted hashes for contents."""

import hashlib
from dataclasses import dataclass, field
from typing import assert_never

from raydix.runtime.cache.page_key import KEY_BYTES, TOKEN_BYTES
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.recording import (
    BLOCK_HASH_BYTES,
    RecordedHint,
    RecordedRequest,
    RecordingPart,
)
from raydix.runtime.scheduler.events import (
    BeginRecording,
    EndRecording,
    RecordingTold,
    TakeRecording,
)
from raydix.runtime.scheduler.life.refusals import is_sound_hint
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.request import RequestState

PATIENCE_S = 60.0
"""The time after which a recording ends from which nobody has taken anything."""
MAX_BYTES = 16 << 20
"""The most that is kept for whoever takes it; what comes beyond that is dropped, and counted."""
_ENTRY_BYTES = 200
"""The bytes of a request or hint besides the hashes of its blocks, roughly."""


@dataclass(slots=True)
class _Running:
    """The recording that runs."""

    name: str
    salt: bytes = field(repr=False)
    block_pages: int
    began_s: float
    taken_s: float
    requests: list[RecordedRequest] = field(default_factory=list)
    """What nobody has taken yet, as is all below."""
    hints: list[RecordedHint] = field(default_factory=list)
    num_unserved: int = 0
    num_dropped: int = 0
    num_bytes: int = 0

    def hash_of(self, kind: bytes, content: bytes) -> bytes:
        """A hash that says nothing of its content to whoever lacks the salt."""
        digest = hashlib.blake2b(content, digest_size=BLOCK_HASH_BYTES, key=self.salt, person=kind)
        return digest.digest()

    def take_part(self, block_tokens: int) -> RecordingPart:
        """Take what nobody has taken yet."""
        part = RecordingPart(
            block_tokens=block_tokens,
            requests=tuple(self.requests),
            hints=tuple(self.hints),
            num_unserved=self.num_unserved,
            num_dropped=self.num_dropped,
        )
        self.requests, self.hints = [], []
        self.num_unserved = self.num_dropped = self.num_bytes = 0
        return part

    def has_room(self, num_bytes: int) -> bool:
        """Whether an entry with so many bytes of hashes is kept; else it counts as dropped."""
        num_bytes += _ENTRY_BYTES
        if self.num_bytes + num_bytes > MAX_BYTES:
            self.num_dropped += 1
            return False
        self.num_bytes += num_bytes
        return True


class Recorder:
    """Owns: the recording that runs, if any, and what of it nobody has taken yet.

    One runs at a time. It ends when it is told to, or when nobody takes what it has any more.
    """

    def __init__(self, requests: Requests, page_size: int) -> None:
        self._requests, self._page_size = requests, page_size
        self._running: _Running | None = None
        self._now_s = 0.0

    @property
    def is_running(self) -> bool:
        """Whether requests are recorded."""
        return self._running is not None

    def advance(self, now_s: float) -> None:
        """Note that it is so late."""
        self._now_s = now_s
        if self._running is not None and now_s - self._running.taken_s > PATIENCE_S:
            self._running = None

    def take(self, order: BeginRecording | TakeRecording | EndRecording) -> RecordingTold:
        """Begin a recording, tell what is new of one, or end one; what is refused says why."""
        if isinstance(order, BeginRecording):
            return self._begin(order)
        running = self._running
        if running is None or running.name != order.name:
            text = (
                f"there is no recording {order.name}: it was ended, nobody has taken anything for "
                f"{PATIENCE_S:g} s, or the Scheduler was restarted. Begin another one."
            )
            return RecordingTold(name=order.name, refusal=text)

        match order:
            case TakeRecording():
                running.taken_s = self._now_s
            case EndRecording():
                for request in self._requests.living.values():
                    self.note_end(request)
                self._running = None
            case _:
                assert_never(order)
        return RecordingTold(name=order.name, part=self._part_of(running))

    def _begin(self, order: BeginRecording) -> RecordingTold:
        size = self._page_size
        block_tokens = size if order.block_tokens is None else order.block_tokens
        text = None
        if block_tokens < 1 or block_tokens % size:
            text = (
                f"blocks have {block_tokens} tokens; expected a multiple of this engine's "
                f"cache.page_size, which is {size}, as its keys stand for whole pages."
            )
        elif self._running is not None:
            text = (
                "somebody records this engine already; expected one recording at a time. Wait "
                f"until that one ends: at the latest {PATIENCE_S:g} s after nobody takes it."
            )
        if text is not None:
            return RecordingTold(name=order.name, refusal=text)
        self._running = _Running(
            name=order.name,
            salt=order.salt,
            block_pages=block_tokens // size,
            began_s=self._now_s,
            taken_s=self._now_s,
        )
        return RecordingTold(name=order.name, part=self._part_of(self._running))

    def _part_of(self, running: _Running) -> RecordingPart:
        return running.take_part(running.block_pages * self._page_size)

    def note_end(self, request: RequestState) -> None:
        """Note that a request ends, as far as it has come."""
        running = self._running
        # What came before has filled the caches before, too.
        if running is None or request.arrival_s < running.began_s:
            return
        if request.admitted_s is None:
            running.num_unserved += 1
            return
        submit = request.submit
        blocks = self._prompt_hashes(running, request.chain)
        answer_blocks = self._answer_hashes(running, request.chain)
        if not running.has_room(len(blocks) + len(answer_blocks)):
            return
        session = None
        if submit.session_id is not None:
            session = _session(running, submit.session_id, submit.cache_salt)
        recorded = RecordedRequest(
            arrival_s=request.arrival_s - running.began_s,
            end_s=self._now_s - running.began_s,
            num_prompt_tokens=request.num_prompt,
            num_answer_tokens=request.num_output,
            blocks=blocks,
            answer_blocks=answer_blocks,
            session=session,
            priority=submit.priority,
            retention=submit.retention,
        )
        running.requests.append(recorded)

    def note_hint(self, message: RetainSession) -> None:
        """Note a hint that comes without a request."""
        running = self._running
        if running is None or not is_sound_hint(message.retention) or not running.has_room(0):
            return
        hint = RecordedHint(
            time_s=self._now_s - running.began_s,
            session=_session(running, message.session_id, message.cache_salt),
            retention=message.retention,
        )
        running.hints.append(hint)

    def _prompt_hashes(self, running: _Running, chain: Chain) -> bytes:
        """The hashes of a prompt's blocks, each with all before it; the last may not be whole."""
        num_whole = chain.num_prompt_pages // running.block_pages
        ends = _ends(running, chain, 0, num_whole)
        hashes = [running.hash_of(b"block", end) for end in ends]

        first_page = num_whole * running.block_pages
        num_left = chain.num_prompt - first_page * self._page_size
        if num_left:
            rest = chain.packed_pages(first_page, -(-chain.num_prompt // self._page_size))
            before = ends[-1] if ends else bytes(chain.identity)
            hashes.append(running.hash_of(b"tail", before + rest[: num_left * TOKEN_BYTES]))
        return b"".join(hashes)

    def _answer_hashes(self, running: _Running, chain: Chain) -> bytes:
        """The hashes of the blocks that an answer fills, as the next turn's prompt has them."""
        # Nobody computes the keys and values of a last token.
        num_computed = chain.num_tokens - 1 if chain.num_output else 0
        pages = running.block_pages
        start = chain.num_prompt_pages // pages
        ends = _ends(running, chain, start, num_computed // self._page_size // pages)
        return b"".join(running.hash_of(b"block", end) for end in ends)


def _ends(running: _Running, chain: Chain, start: int, stop: int) -> list[bytes]:
    """The keys of the last pages of blocks [start, stop), which stand for all before them, too."""
    pages = running.block_pages
    keys = chain.keys(stop * pages, start * pages)
    width = pages * KEY_BYTES
    return [keys[end - KEY_BYTES : end] for end in range(width, len(keys) + 1, width)]


def _session(running: _Running, session_id: str, cache_salt: str | None) -> bytes:
    # With its length, so that no two pairs are one text.
    salt = b"" if cache_salt is None else b"salt" + cache_salt.encode()
    length = len(salt).to_bytes(8, "little")
    return running.hash_of(b"session", length + salt + session_id.encode())
