"""The clients of a simulation: they ask, hear every token, and go on elsewhere after a death."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import AskingId, RequestId
from raydix.runtime.foresight.simulator.front import ServiceFront
from raydix.runtime.foresight.simulator.requests import ClientRequest, tokens_of_request
from raydix.runtime.foresight.simulator.whole_engine import SimulatedEngine
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    FailureKind,
    FinishReason,
    RequestDelta,
    SubmitRequest,
)
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.scheduler.events import SendTokens

_ASK_AGAIN_S = 0.1
_PATIENCE_S = 86_400.0
"""The virtual time without any news for any client after which something is stuck."""
_ASKED_AGAIN = (FailureKind.ENGINE_DEAD, FailureKind.SHUTTING_DOWN)


class WrongAnswer(Exception):
    """A client has heard other tokens than its request has, or too many."""


@dataclass(slots=True, eq=False)
class Answer:
    """What a client has heard of a request."""

    number: int
    request: ClientRequest
    num_simulated: int
    """The tokens that are simulated of its answer, its last ones."""
    asked_s: float
    tokens: list[int]
    """What the client knows: at first those that are not simulated, which so have their pages."""
    sources: dict[str, int] | None = None
    """Its prompt's tokens by source, as they were first told."""
    engine: str = ""
    """The engine that was asked last."""
    num_cut_off: int = 0
    """How often nobody was left to answer it, so that it was asked anew."""
    num_hand_overs: int = 0
    """How often one engine has left it to another one."""
    first_token_s: float | None = None
    last_token_s: float = 0.0
    ended_s: float | None = None
    failure: str | None = None


class Clients:
    """Owns: all requests of a run, and what has become of each.

    Whatever dies, each client hears every token of its answer once, in order.
    """

    def __init__(
        self,
        world: World,
        engines: Sequence[SimulatedEngine],
        requests: Sequence[ClientRequest],
        policy: RoutingPolicy,
        vocab_size: int,
    ) -> None:
        self._world, self._requests, self._vocab_size = world, requests, vocab_size
        self._num_askings = 0
        self._open: dict[AskingId, Answer] = {}
        self._waiting: list[Answer] = []
        """What could be asked of nobody, in order."""
        self.answers: list[Answer] = []
        """All answers, in the order in which requests came."""
        self.num_ended = 0
        self.last_news_s = 0.0
        """When somebody last heard a token or an end, or is to ask, which may be yet to come."""
        self.gaps_s = array("d")
        """The times between tokens of an answer, if each token is simulated."""
        self._front = ServiceFront(
            world, engines, policy, hear=self._hear, lose=self._lose, may_ask=self._ask_waiting
        )
        self._followers: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            if request.follows is None:
                self._come(number, request.arrival_s)
            else:
                self._followers.setdefault(request.follows, []).append(number)

    @property
    def hand_overs_s(self) -> Sequence[float]:
        """How long each hand-over has taken, from the first token to the second one."""
        return self._front.hand_overs_s

    @property
    def is_done(self) -> bool:
        """Whether every request has ended."""
        return self.num_ended == len(self._requests)

    def is_over(self) -> bool:
        """Whether every request has ended, or those that are left wait for ever."""
        # Asked before each action of the clock.
        if self.num_ended == len(self._requests):
            return True
        return self._world.clock.now_s > self.last_news_s + _PATIENCE_S

    def _come(self, number: int, time_s: float) -> None:
        self.last_news_s = max(self.last_news_s, time_s)
        self._world.clock.at(time_s, lambda: self._begin(number))

    def _begin(self, number: int) -> None:
        request = self._requests[number]
        stride = self._world.rules.tokens_per_simulated
        num_simulated = -(-request.num_answer_tokens // stride)
        num_known = request.num_answer_tokens - num_simulated
        answer = Answer(
            number=number,
            request=request,
            num_simulated=num_simulated,
            asked_s=self._world.now_s,
            tokens=tokens_of_request(number, num_known, self._vocab_size).tolist(),
        )
        self.answers.append(answer)
        profile = self._world.profile
        client_s = profile.client_s + profile.client_token_s * request.num_prompt_tokens
        self._world.after(client_s, lambda: self._ask(answer))

    def _ask(self, answer: Answer) -> None:
        self._num_askings += 1
        asking = AskingId(self._num_askings)
        message = SubmitRequest(
            asking=asking,
            request_id=_name(answer),
            token_ids=answer.request.prompt(self._vocab_size),
            sampling=DeviceSampling(seed=answer.number),
            max_tokens=answer.request.num_answer_tokens,
            known_output=int32_array(answer.tokens) if answer.tokens else None,
            session_id=answer.request.session,
            priority=answer.request.priority,
            retention=answer.request.retention,
        )
        self._open[asking] = answer
        engine = self._front.send(message)
        if engine is None:
            del self._open[asking]
            self._waiting.append(answer)
        else:
            answer.engine = engine.name

    def _ask_waiting(self) -> None:
        """There may be an engine now for what waits for one."""
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            self._ask(answer)

    def _ask_again(self, answer: Answer) -> None:
        answer.num_cut_off += 1
        self._world.after(_ASK_AGAIN_S, lambda: self._ask(answer))

    def _lose(self, asking: AskingId) -> None:
        """The link to an engine has closed: another one goes on with the request."""
        self._ask_again(self._open.pop(asking))

    def _hear(self, said: RequestDelta | SendTokens) -> None:
        if isinstance(said, SendTokens):
            pairs = zip(said.askings.tolist(), said.token_ids.tolist(), strict=True)
            for asking, token in pairs:
                self._add(AskingId(asking), [token])
            return

        answer = self._open.get(said.asking)
        if answer is None:
            return
        if said.cached_tokens_by_source is not None and answer.sources is None:
            answer.sources = said.cached_tokens_by_source
        self._add(said.asking, said.token_ids.tolist())
        if said.failure is not None and said.failure.kind in _ASKED_AGAIN:
            self._leave(said.asking)
            self._ask_again(answer)
        elif said.finished is FinishReason.HANDED_OVER:
            answer.num_hand_overs += 1
            self._leave(said.asking)
            self._ask(answer)
        elif said.failure is not None or said.finished is not None:
            answer.failure = None if said.failure is None else said.failure.kind.value
            del self._open[said.asking]
            self._front.note_end(said.asking, said.request_id)
            self._end(answer)

    def _leave(self, asking: AskingId) -> None:
        """Another engine is to go on with what this asking has brought."""
        answer = self._open.pop(asking)
        self._front.note_left(asking, _name(answer))

    def _add(self, asking: AskingId, tokens: list[int]) -> None:
        answer = self._open.get(asking)
        if answer is None or not tokens:
            return
        now_s = self._world.now_s
        if answer.first_token_s is None:
            answer.first_token_s = now_s
        elif self._world.rules.tokens_per_simulated == 1:
            self.gaps_s.append(now_s - answer.last_token_s)
        answer.last_token_s = now_s
        self.last_news_s = max(self.last_news_s, now_s)
        self._front.note_tokens(asking, _name(answer))
        answer.tokens += tokens

    def _end(self, answer: Answer) -> None:
        answer.ended_s = self._world.now_s
        self.last_news_s = max(self.last_news_s, answer.ended_s)
        self.num_ended += 1
        if answer.failure is None:
            self._compare(answer)
        for number in self._followers.get(answer.number, ()):
            self._come(number, answer.ended_s + self._requests[number].pause_s)

    def _compare(self, answer: Answer) -> None:
        """Raise WrongAnswer unless a client has heard each of its tokens once, in order."""
        num_tokens = answer.request.num_answer_tokens
        told = tokens_of_request(answer.number, num_tokens, self._vocab_size)
        expected = told.tolist()
        if answer.tokens != expected:
            raise WrongAnswer(
                f"request {answer.number} heard {answer.tokens} instead of {expected}, from "
                f"{answer.engine} at {answer.ended_s} s"
            )


def _name(answer: Answer) -> RequestId:
    return RequestId(f"request {answer.number}")
