"""What simulated clients ask: prompts made of the blocks of a trace, and when they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raydix.runtime.foresight.simulator.world import tokens_of
from raydix.runtime.foresight.traces import TraceRequest
from raydix.runtime.messages.arrays import Int32Array, frozen
from raydix.runtime.messages.retention import Retention

_FILLER = 7


@dataclass(frozen=True, slots=True)
class AnswerBlock:
    """A block that an answer has filled, wholly or behind the last tokens of its prompt."""

    number: int
    """The request that was answered, by its place."""
    num_answered: int
    """How many tokens of its answer come before the block's end."""
    partial_block: int | None
    """The block of the prompt that was not whole, whose tokens are this block's first ones."""


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
    answered: Mapping[int, AnswerBlock] = field(default_factory=dict)
    """Blocks of any prompts that answers have filled before."""

    def within(self, max_model_len: int) -> "ClientRequest":
        """The same, but for an answer that ends where the context does."""
        room = max_model_len - self.num_prompt_tokens
        # A prompt that fills the context is refused as it is.
        if room <= 0 or self.num_answer_tokens <= room:
            return self
        return replace(self, num_answer_tokens=room)

    def prompt(self, vocab_size: int) -> Int32Array:
        """Its tokens, the same for equal blocks."""
        tokens = _named_tokens(self.blocks, self.block_tokens, vocab_size)
        for place, block in enumerate(self.blocks):
            if (answer := self.answered.get(block)) is not None:
                start = place * self.block_tokens
                tokens[start : start + self.block_tokens] = self._answer_tokens(answer, vocab_size)
        return frozen(tokens[: self.num_prompt_tokens])

    def _answer_tokens(self, block: AnswerBlock, vocab_size: int) -> Int32Array:
        """The tokens of a block, as the simulated answer has them."""
        said = tokens_of_request(block.number, block.num_answered, vocab_size)
        num_said = min(len(said), self.block_tokens)
        partial = () if block.partial_block is None else (block.partial_block,)
        asked = _named_tokens(partial, self.block_tokens, vocab_size)
        found = [asked[: self.block_tokens - num_said], said[len(said) - num_said :]]
        return np.concatenate(found)


def _named_tokens(blocks: tuple[int, ...], block_tokens: int, vocab_size: int) -> Int32Array:
    tokens = np.full(len(blocks) * block_tokens, _FILLER, dtype=np.int32)
    names = np.array(blocks, dtype=np.int64)
    base = min(vocab_size, 30_000)
    # A block is told from all others by its first three tokens.
    for place in range(min(3, block_tokens)):
        tokens[place::block_tokens] = names // base**place % base
    return tokens


def tokens_of_request(number: int, num_tokens: int, vocab_size: int) -> Int32Array:
    """The first tokens of a request's answer."""
    seeds = np.full(num_tokens, number, dtype=np.int64)
    return tokens_of(seeds, np.arange(num_tokens, dtype=np.int32), vocab_size)


def requests_of(
    trace: Sequence[TraceRequest], block_tokens: int, *, is_closed_loop: bool
) -> list[ClientRequest]:
    """The requests of a trace.

    In a closed loop a session's next request comes a pause after the answer that was simulated, and
    not at the time that the trace says.
    """
    last_of: dict[int, int] = {}
    answered = _answered(trace, block_tokens)
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
                answered=answered,
            )
        )
    return made


def _answered(trace: Sequence[TraceRequest], block_tokens: int) -> dict[int, AnswerBlock]:
    """The blocks that first came with an answer: prompts repeat what is simulated of it."""
    named: set[int] = set()
    answered: dict[int, AnswerBlock] = {}
    for number, request in enumerate(trace):
        named.update(request.blocks)
        first_end = (len(request.blocks) + 1) * block_tokens - request.num_tokens
        for place, block in enumerate(request.answer_blocks):
            if block not in named:
                partial = None if place else request.partial_block
                end = first_end + place * block_tokens
                answered[block] = AnswerBlock(number, end, partial)
        named.update(request.answer_blocks)
    return answered
