"""What simulated clients ask: prompts made of the blocks of a trace, and when they come."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.runtime.foresight.traces import TraceRequest
from raydix.runtime.messages.arrays import Int32Array, frozen
from raydix.runtime.messages.retention import Retention

_FILLER = 7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientRequest:
    """One request, whose prompt is named by blocks."""

    blocks: tuple[int, ...]
    """All blocks of the prompt, each named with all that comes before it."""
    block_tokens: int
    num_prompt_tokens: int
    num_answer_tokens: int
    session: str
    arrival_s: float
    """When it comes, unless it follows an answer."""
    follows: int | None = None
    """The request whose answer it comes after, by its place; None: it comes by itself."""
    pause_s: float = 0.0
    """The time from that answer to this request."""
    priority: int = 0
    retention: Retention | None = None

    def prompt(self, vocab_size: int) -> Int32Array:
        """Its tokens, the same for equal blocks."""
        tokens = np.full(len(self.blocks) * self.block_tokens, _FILLER, dtype=np.int32)
        names = np.array(self.blocks, dtype=np.int64)
        base = min(vocab_size, 30_000)
        # A block is told from all others by its first three tokens.
        for place in range(min(3, self.block_tokens)):
            tokens[place :: self.block_tokens] = names // base**place % base
        return frozen(tokens[: self.num_prompt_tokens])


def requests_of(
    trace: Sequence[TraceRequest], block_tokens: int, *, is_closed_loop: bool
) -> list[ClientRequest]:
    """The requests of a trace.

    In a closed loop a session's next request comes a pause after the answer that was simulated, and
    not at the time that the trace says.
    """
    last_of: dict[int, int] = {}
    made = []
    for index, request in enumerate(trace):
        before = last_of.get(request.session) if is_closed_loop else None
        pause_s = request.pause_s if request.pause_s is not None else 0.0
        if before is not None and request.pause_s is None:
            pause_s = max(0.0, request.arrival_s - trace[before].end_s)
        last_of[request.session] = index
        partial = () if request.partial_block is None else (request.partial_block,)
        made.append(
            ClientRequest(
                blocks=(*request.blocks, *partial),
                block_tokens=block_tokens,
                num_prompt_tokens=request.num_tokens,
                num_answer_tokens=max(1, request.num_answer_tokens),
                session=str(request.session),
                arrival_s=request.arrival_s,
                follows=before,
                pause_s=pause_s,
                priority=request.priority,
                retention=request.retention,
            )
        )
    return made
