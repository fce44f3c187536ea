"""The clients of a simulation: they ask, hear every token, and go on elsewhere after a death."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import AskingId, RequestId
from raydix.runtime.foresight.simulator.front import ServiceFront
from raydix.runtime.foresight.simulator.node import SimulatedNode
from raydix.runtime.foresight.simulator.requests import ClientRequest, tokens_of_request
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FailureKind, RequestDelta, SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.routing.policies import RoutingPolicy
from raydix.runtime.scheduler.events import SendTokens

_ASK_AGAIN_S = 0.1
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
    node: str = ""
    """The node that was asked last."""
    num_askings: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    failure: str | None = None


class Clients:
    """Owns: all requests of a run, and what has become of each.

    Whatever dies, each client hears every token of its answer once, in order.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[SimulatedNode],
        requests: Sequence[ClientRequest],
        policy: RoutingPolicy,
        vocab_size: int,
    ) -> None:
        self._world, self._requests, self._vocab_size = world, requests, vocab_size
        self._front = ServiceFront(world, nodes, policy, hear=self._hear, lose=self._lose)
        self._num_askings = 0
        self._open: dict[AskingId, Answer] = {}
        self.answers: list[Answer] = []
        """All answers, in the order in which requests came."""
        self.num_ended = 0
        self.last_news_s = 0.0
        """When somebody last heard a token or an end, or is to ask, which may be yet to come."""
        self._followers: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            if request.follows is None:
                self._come(number, request.arrival_s)
            else:
                self._followers.setdefault(request.follows, []).append(number)

    @property
    def is_done(self) -> bool:
        """Whether every request has ended."""
        return self.num_ended == len(self._requests)

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
        answer.num_askings += 1
        message = SubmitRequest(
            asking=asking,
            request_id=RequestId(f"request {answer.number}"),
            token_ids=answer.request.prompt(self._vocab_size),
            sampling=DeviceSampling(seed=answer.number),
            max_tokens=answer.request.num_answer_tokens,
            known_output=int32_array(answer.tokens) if answer.tokens else None,
            session_id=answer.request.session,
            priority=answer.request.priority,
            retention=answer.request.retention,
        )
        self._open[asking] = answer
        node = self._front.send(message)
        if node is None:
            del self._open[asking]
            self._ask_again(answer)
        else:
            answer.node = node.name

    def _ask_again(self, answer: Answer) -> None:
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
            self._close(said.asking)
            self._ask_again(answer)
        elif said.failure is not None or said.finished is not None:
            answer.failure = None if said.failure is None else said.failure.kind.value
            self._close(said.asking)
            self._end(answer)

    def _close(self, asking: AskingId) -> None:
        del self._open[asking]
        self._front.note_end(asking)

    def _add(self, asking: AskingId, tokens: list[int]) -> None:
        answer = self._open.get(asking)
        if answer is None or not tokens:
            return
        if answer.first_token_s is None:
            answer.first_token_s = self._world.now_s
        self.last_news_s = max(self.last_news_s, self._world.now_s)
        self._front.note_first_token(asking)
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
                f"{answer.node} at {answer.ended_s} s"
            )
