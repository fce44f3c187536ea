"""What a benchmark asks an engine for, known before anything is sent."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydix.runtime.api.prompts import Prompt

MAX_TOKEN_ID = 200
"""Made-up prompts use ids below this only, which every vocabulary has."""
_SMALL_IDS = bytes(byte % MAX_TOKEN_ID for byte in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, for the model's chat template."""

    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPrompt:
    """A prompt of which only the identities of its blocks are known, as in Mooncake's traces."""

    block_ids: tuple[int | str, ...]
    num_tokens: int
    block_tokens: int

    def token_ids(self) -> list[int]:
        """Made-up tokens: equal blocks have equal ones, and others differ nearly surely."""
        tokens = bytearray()
        for block_id in self.block_ids:
            tokens += random.Random(block_id).randbytes(self.block_tokens).translate(_SMALL_IDS)
        return list(tokens[: self.num_tokens])


AnyPrompt = Prompt | ChatPrompt | BlockPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a load."""

    prompt: AnyPrompt
    output_tokens: int
    arrival_s: float | None = None
    """When its workload has it arrive, counted from the start; None: it does not say."""
    after: int | None = None
    """The request, by its place in the workload, that must have ended before: an earlier turn."""
    pause_s: float = 0.0
    """Seconds from the end of that request to this one: a tool has run, or somebody has read."""
    session_id: str | None = None
    next_pause_s: float | None = None
    """The pause before the session's next request; None: it is the last one, or of no session."""
    priority: int = 0
    retention: Mapping[str, Any] | None = None
    """What its workload has it say of what comes next of the session; None: nothing."""
    is_measured: bool = True
    """False: it prepares the cache, and only counts for throughput and errors."""

    @property
    def hint(self) -> dict[str, Any] | None:
        """What a harness that knows its session says with the request, or a recorded one said."""
        if self.retention is not None or self.session_id is None:
            return None if self.retention is None else dict(self.retention)
        return {"end": True} if self.next_pause_s is None else {"resume_in_s": self.next_pause_s}


def infinite_share(requests: Sequence[LoadRequest]) -> float | None:
    """The share of prompt tokens that a cache without bounds would have, by whole blocks.

    None if other than traces of blocks is asked.
    """
    seen: set[int | str] = set()
    num_known = num_tokens = 0
    for request in requests:
        prompt = request.prompt
        if not isinstance(prompt, BlockPrompt):
            return None
        whole = prompt.block_ids[: prompt.num_tokens // prompt.block_tokens]
        num_known += sum(block in seen for block in whole) * prompt.block_tokens
        num_tokens += prompt.num_tokens
        seen.update(whole)
    return num_known / num_tokens if num_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Made-up conversations that grow from turn to turn.

    A first prompt has `prompt_tokens`; each later one begins with the one before it and has
    `output_tokens`, in place of the answer, and `turn_tokens` more. First turns find nothing cached
    and are not measured.
    """

    num_conversations: int
    num_turns: int
    prompt_tokens: int
    turn_tokens: int
    output_tokens: int
    seed: int = 0

    def requests(self) -> tuple[LoadRequest, ...]:
        """All first turns, then all second ones, and so on."""
        rng = random.Random(self.seed)
        histories: list[list[int]] = [[] for _ in range(self.num_conversations)]
        requests = []
        for turn in range(self.num_turns):
            num_new = self.turn_tokens + self.output_tokens if turn else self.prompt_tokens
            for i, history in enumerate(histories):
                history += [rng.randrange(MAX_TOKEN_ID) for _ in range(num_new)]
                request = LoadRequest(
                    prompt=tuple(history),
                    output_tokens=self.output_tokens,
                    after=(turn - 1) * self.num_conversations + i if turn else None,
                    is_measured=turn > 0,
                )
                requests.append(request)
        return tuple(requests)
