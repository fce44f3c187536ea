"""A trace on simulated nodes: production's cores, on a virtual clock."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from raydix.errors import RaydixError
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.clients import Answer, Clients
from raydix.runtime.foresight.simulator.node import NodeSettings, SimulatedNode
from raydix.runtime.foresight.simulator.profile import Profile
from raydix.runtime.foresight.simulator.requests import ClientRequest
from raydix.runtime.foresight.simulator.storage import SharedStore
from raydix.runtime.foresight.simulator.world import Rules, World
from raydix.runtime.routing.policies import RoutingPolicy, SoonestNode

_WATCHED_STEPS = 1000
"""The steps of the clock between two looks at how far a simulation is."""
_SOURCES = ("l1", "l2", "peer", "l3", "computed")


class Stuck(RaydixError):
    """Requests wait for something that never happens."""


class KillKind(StrEnum):
    """What is killed."""

    RANK = "rank"
    HOST = "host"
    ENGINE = "engine"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is simulated."""

    node: NodeSettings
    num_nodes: int = 1
    num_prefill: int = 0
    """How many of the nodes compute prompts for the others, whose roles are those of `node`."""
    has_storage: bool = False
    max_storage_bytes: int | None = None
    policy: RoutingPolicy = field(default_factory=SoonestNode)
    kills: tuple[tuple[KillKind, int], ...] = ()
    """How many of each kind are killed, at random moments while requests come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run. Times are in virtual seconds."""

    num_requests: int
    failures: dict[str, int]
    """The requests that were refused or failed, by kind."""
    prompt_tokens: dict[str, int]
    """Prompt tokens of requests that were answered, by where they came from."""
    answer_tokens: int
    num_cut_answers: int
    """The answers that ended where the context does, before the trace's did."""
    first_token_s: dict[str, float]
    """The times to the first token, by percentile."""
    next_token_s: dict[str, float]
    gap_s: dict[str, float]
    """The times from one token to the next, of all answers; none unless each is simulated."""
    duration_s: float
    """From the first arrival to the last token."""
    num_asked_again: int
    """How often a request was sent anew, after a death."""
    num_handed_over: int
    """How often a request went on at another engine than the one that computed its prompt."""
    hand_over_s: dict[str, float]
    """The times of hand-overs, from the first token to the second one."""
    requests_by_engine: dict[str, int]
    num_events: int
    """The number of events that the cores have taken."""

    @property
    def hit_fraction(self) -> float:
        """The part of prompt tokens that was not computed."""
        total = sum(self.prompt_tokens.values())
        return 1 - self.prompt_tokens["computed"] / total if total else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers per second."""
        return self.answer_tokens / self.duration_s if self.duration_s else 0.0

    def figures(self) -> dict[str, Any]:
        """All of it under names that programs read."""
        total = max(1, sum(self.prompt_tokens.values()))
        return {
            "requests": self.num_requests,
            "failures": self.failures,
            "prompt_tokens": self.prompt_tokens,
            "hits": {name: tokens / total for name, tokens in self.prompt_tokens.items()},
            "hit_fraction": self.hit_fraction,
            "answer_tokens": self.answer_tokens,
            "cut_answers": self.num_cut_answers,
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": self.first_token_s,
            "tpot_s": self.next_token_s,
            "gap_s": self.gap_s,
            "duration_s": self.duration_s,
            "asked_again": self.num_asked_again,
            "handed_over": self.num_handed_over,
            "hand_over_s": self.hand_over_s,
            "requests_by_engine": self.requests_by_engine,
        }


class Simulation:
    """Owns: the world, its nodes and its clients."""

    def __init__(
        self,
        service: Service,
        profile: Profile,
        requests: Sequence[ClientRequest],
        rules: Rules | None = None,
    ) -> None:
        """Everything is started, and requests are to come."""
        self._world = World(profile, rules or Rules())
        self._service = service
        settings = service.node.scheduler
        self._requests = [request.within(settings.max_model_len) for request in requests]
        self._num_cut_answers = sum(
            asked is not request for asked, request in zip(requests, self._requests, strict=True)
        )
        layout = settings.layout
        store = None
        if service.has_storage:
            sizes = tuple(layout.payload_bytes(group) for group in range(len(layout.groups)))
            store = SharedStore(self._world, service.max_storage_bytes, sizes)
        self.nodes: list[SimulatedNode] = []
        for index in range(service.num_nodes):
            self.nodes.append(self._new_node(index, store))
        engines = [engine for node in self.nodes for engine in node.engines]
        self.clients = Clients(
            self._world, engines, self._requests, service.policy, settings.vocab_size
        )
        self._draw_kills()

    def _new_node(self, index: int, store: SharedStore | None) -> SimulatedNode:
        name, settings = f"node {index}", self._service.node
        if index >= self._service.num_nodes - self._service.num_prefill:
            settings = replace(settings, roles=(EngineRole.PREFILL,) * len(settings.roles))
        return SimulatedNode(
            self._world,
            name,
            settings,
            store=store,
            others=lambda: [node for node in self.nodes if node.name != name],
        )

    def _draw_kills(self) -> None:
        draw, clock = self._world.random, self._world.clock
        arrivals = [request.arrival_s for request in self._requests]
        for kind, count in self._service.kills:
            for _ in range(count):
                node = draw.choice(self.nodes)
                act = {
                    KillKind.RANK: node.kill_rank,
                    KillKind.HOST: node.kill_host,
                    KillKind.ENGINE: node.kill_engine,
                    KillKind.NODE: node.kill_node,
                }[kind]
                clock.at(draw.uniform(min(arrivals), max(arrivals)), act)

    def run(self, watch: Callable[[str], None] | None = None) -> Outcome:
        """Go on until every request has ended, and all invariants hold.

        `watch` is told now and then how far it is. Raises Stuck if some requests would never end,
        and WrongAnswer if a client hears what it must not.
        """
        clients, world = self.clients, self._world
        world.clock.run(clients.is_over if watch is None else self._watched(watch))
        if not clients.is_done:
            num_open = len(self._requests) - self.clients.num_ended
            raise Stuck(
                f"{num_open:,} of {len(self._requests):,} requests have no answer, and for a day "
                f"of the trace's time, up to {world.now_s:,.0f} s, nothing has come of any; "
                f"expected that a step takes less. Look whether the times of profile "
                f"{world.profile.name} are seconds. If they are, this is a fault of Raydix."
            )
        for node in self.nodes:
            node.check()
        return self._outcome()

    def _watched(self, watch: Callable[[str], None]) -> Callable[[], bool]:
        """Whether all is over, of which `watch` hears now and then as it is asked."""
        num_steps = itertools.count(1)

        def is_over() -> bool:
            if not next(num_steps) % _WATCHED_STEPS:
                watch(self._how_far())
            return self.clients.is_over()

        return is_over

    def _how_far(self) -> str:
        return (
            f"{self.clients.num_ended:,} of {len(self._requests):,} requests have ended, "
            f"{self._world.now_s:,.0f} s of the trace's time"
        )

    def _outcome(self) -> Outcome:
        answers = self.clients.answers
        good = [answer for answer in answers if answer.failure is None]
        sources: Counter[str] = Counter(dict.fromkeys(_SOURCES, 0))
        for answer in good:
            for source, num_tokens in (answer.sources or {}).items():
                sources[source.partition(":")[0]] += num_tokens
        stride = self._world.rules.tokens_per_simulated
        ends_s = [answer.ended_s for answer in answers if answer.ended_s is not None]
        return Outcome(
            num_requests=len(answers),
            failures=dict(sorted(Counter(a.failure for a in answers if a.failure).items())),
            prompt_tokens=dict(sources),
            answer_tokens=sum(answer.request.num_answer_tokens for answer in good),
            num_cut_answers=self._num_cut_answers,
            first_token_s=_percentiles(
                [a.first_token_s - a.asked_s for a in good if a.first_token_s is not None]
            ),
            next_token_s=_percentiles([each for a in good for each in _next_token_s(a, stride)]),
            gap_s=_percentiles(self.clients.gaps_s),
            duration_s=max(ends_s) - min(answer.asked_s for answer in answers),
            num_asked_again=sum(answer.num_cut_off for answer in answers),
            num_handed_over=sum(answer.num_hand_overs for answer in answers),
            hand_over_s=_percentiles(self.clients.hand_overs_s),
            requests_by_engine=dict(sorted(Counter(answer.engine for answer in answers).items())),
            num_events=sum(node.num_events for node in self.nodes),
        )


def _next_token_s(answer: Answer, stride: int) -> list[float]:
    """The mean time of a token after the first; nothing if there is none."""
    num_later = stride * (answer.num_simulated - 1)
    if not num_later or answer.first_token_s is None or answer.ended_s is None:
        return []
    return [(answer.ended_s - answer.first_token_s) / num_later]


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}
