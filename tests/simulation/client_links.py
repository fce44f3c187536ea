"""One link of a client: what it asks and hears, and what is kept for it while it does not read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from raydix.ids import AskingId, ClientId
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    FromClient,
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    StopRequest,
    SubmitRequest,
    UnpinPrompt,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

_DELTA_BYTES = 64
_TOKEN_BYTES = 4
ClientAsking = FromClient
CUT_OFF = "cut off"
"""How an answer ends whose link has closed, ..."""
GONE = "gone"
"""... or whose client has."""


@dataclass(slots=True, eq=False)
class Answer:
    """What a client has heard of one asking."""

    asked: SubmitRequest | PrefetchPrompt
    link: ClientLink
    tokens: list[int] = field(default_factory=list)
    prompt_logprob_bits: list[int] = field(default_factory=list)
    sources: dict[str, int] | None = None
    ending: str | None = None
    first_token_s: float | None = None

    @property
    def submit(self) -> SubmitRequest:
        """What was asked, which was no prefetch."""
        assert isinstance(self.asked, SubmitRequest)
        return self.asked

    @property
    def output(self) -> list[int]:
        """The output so far, with what an earlier asking has brought of it."""
        return [*self.submit.earlier_output.tolist(), *self.tokens]

    def hear(self, delta: RequestDelta, now_s: float) -> None:
        """Some news came; nothing may follow the last of it."""
        assert self.ending is None, f"{delta.request_id} hears after its end"
        for run in delta.prompt_logprobs:
            assert run.start == len(self.prompt_logprob_bits) + 1, "a gap, or told twice"
            assert not self.tokens, "all of the prompt comes before any output"
            self.prompt_logprob_bits.extend(run.logprob_bits.tolist())
        self.tokens.extend(delta.token_ids.tolist())
        if delta.token_ids.size and self.first_token_s is None:
            self.first_token_s = now_s

        if delta.cached_tokens_by_source is not None:
            assert self.sources is None, "sources are told once"
            self.sources = delta.cached_tokens_by_source

        if delta.finished is not None:
            self.ending = delta.finished.value
        if delta.failure is not None:
            self.ending = delta.failure.kind.value


class ClientLink:
    """Owns: what is open on this link, and the Scheduler's news that the client has not read."""

    def __init__(self, cluster: Cluster, name: str, client_id: ClientId, link: Link) -> None:
        self.name = name
        self.client_id = client_id
        self.link = link
        self._cluster = cluster
        self._num_askings = 0
        self._answers: dict[AskingId, Answer] = {}
        self._unsent: dict[AskingId, RequestDelta] = {}
        self._reads_again_s = 0.0
        link.listen(End.DIALLER, self._hear, lambda: self._end_all(CUT_OFF))

    def next_asking(self) -> AskingId:
        """A number that was not used on this link."""
        self._num_askings += 1
        return AskingId(self._num_askings)

    def ask(self, message: SubmitRequest | PrefetchPrompt) -> Answer:
        """Something is asked."""
        answer = self._answers[message.asking] = Answer(message, self)
        self._say(message)
        return answer

    def abort(self, answer: Answer) -> None:
        """The client wants no more of it, whether or not it has ended in the meantime."""
        self._say(AbortRequest(asking=answer.asked.asking, request_id=answer.asked.request_id))

    def stop(self, answer: Answer) -> None:
        """The client has found a stop string."""
        self._say(StopRequest(asking=answer.asked.asking, request_id=answer.asked.request_id))

    def retain(self, hint: RetainSession | UnpinPrompt) -> None:
        """The client says what comes next of a session, or that a pin is wanted no more."""
        self._say(hint)

    def expect(self, message: ExpectRequest | AbortRequest) -> None:
        """The client says what is to go on here, or that it will not."""
        self._say(message)

    def rest(self, duration_s: float) -> None:
        """The client does not read for so long."""
        self._reads_again_s = self._cluster.now_s + duration_s
        self._cluster.after(duration_s, self.flush)

    def _say(self, message: ClientAsking) -> None:
        if self.link.is_open:
            # At once: the client has drawn its time by itself.
            self._cluster.scheduler.hear_client(self, message)

    def _hear(self, frame: tuple[RequestDelta, ...]) -> None:
        for delta in frame:
            answer = self._answers[delta.asking]
            assert answer.asked.request_id == delta.request_id, f"{delta} answers {answer.asked}"
            answer.hear(delta, self._cluster.now_s)
            if answer.ending is not None:
                self._cluster.on_ending(answer)

    def vanish(self) -> None:
        """The client is gone for good; it hears no more."""
        self._end_all(GONE)
        self.link.close()

    def _end_all(self, ending: str) -> None:
        for answer in self._answers.values():
            if answer.ending is None:
                answer.ending = ending
                self._cluster.on_ending(answer)

    def add(self, delta: RequestDelta) -> None:
        """The core has news."""
        older = self._unsent.get(delta.asking)
        self._unsent[delta.asking] = delta if older is None else _merge(older, delta)

    def add_tokens(self, askings: list[AskingId], token_ids: list[int]) -> None:
        """The core has one more token for each of these."""
        for asking, token in zip(askings, token_ids, strict=True):
            answer = self._answers[asking]
            self.add(
                RequestDelta(
                    asking=asking,
                    request_id=answer.asked.request_id,
                    token_ids=int32_array((token,)),
                )
            )

    def flush(self) -> None:
        """Send all news, merged, as one frame; give up a client that has left very much unread."""
        if not self._unsent or not self.link.is_open:
            return
        if self._cluster.now_s >= self._reads_again_s:
            frame, self._unsent = tuple(self._unsent.values()), {}
            self.link.send(End.DIALLER, frame)
            return

        num_tokens = sum(len(delta.token_ids) for delta in self._unsent.values())
        if (
            len(self._unsent) * _DELTA_BYTES + num_tokens * _TOKEN_BYTES
            > self._cluster.faults.outbox_bytes
        ):
            self._cluster.num_faults["client given up"] += 1
            self.link.close()


def _merge(older: RequestDelta, newer: RequestDelta) -> RequestDelta:
    assert older.finished is None, f"{newer} follows the end"
    assert older.failure is None, f"{newer} follows the end"
    sources = older.cached_tokens_by_source
    assert sources is None or newer.cached_tokens_by_source is None, "sources are told once"
    return replace(
        newer,
        token_ids=np.concatenate((older.token_ids, newer.token_ids)),
        prompt_logprobs=(*older.prompt_logprobs, *newer.prompt_logprobs),
        cached_tokens_by_source=newer.cached_tokens_by_source if sources is None else sources,
    )
