"""What a Scheduler tells whoever records its requests: lengths, times and salted hashes.

Neither tokens nor texts nor page keys are in it. What two recordings say cannot be joined, as each
has a salt of its own, which no message names.
"""

from dataclasses import dataclass

from raydix.runtime.messages.retention import Retention

BLOCK_HASH_BYTES = 8
"""The bytes of a hash that stands for a block and all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request that came while the recording ran, once it has ended. Never stale."""

    arrival_s: float
    """The time from the recording's begin, as are all times here."""
    end_s: float
    num_prompt_tokens: int
    num_answer_tokens: int
    blocks: bytes
    """The hashes of the prompt's blocks, the last of which may not be whole."""
    answer_blocks: bytes
    """The hashes of the blocks that the answer fills behind the prompt's whole ones.

    What the prompt's last block lacked, it has of the answer. An answer's own last token, which was
    never computed, is in none.
    """
    session: bytes | None
    """The hash of its session, of its tenant's; None: it names none."""
    priority: int
    retention: Retention | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHint:
    """A hint of what comes next of a session, which came without a request. Never stale."""

    time_s: float
    session: bytes
    retention: Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPart:
    """What has been recorded since this was last asked. Stale once the recording has ended."""

    block_tokens: int
    requests: tuple[RecordedRequest, ...] = ()
    """The requests in the order in which they ended."""
    hints: tuple[RecordedHint, ...] = ()
    num_unserved: int = 0
    """The requests that ended before they were admitted, which are left out."""
    num_dropped: int = 0
    """The requests and hints for which there was no room, as nobody has taken what was there."""
