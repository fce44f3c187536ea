"""Drives a `SchedulerCore` by hand: tests decide when steps, copies and HostMemory answer."""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any

from raydix.ids import AskingId, ClientId, ConnectionId, LookupId, RequestId
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import AbortRequest, StopRequest, SubmitRequest
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.runtime.scheduler.group_columns import check_group_columns
from tests.runtime.scheduler.host_stand_in import HostStandIn
from tests.runtime.scheduler.keys import mirror_keys
from tests.simulation.prompt_scores import PromptScores

BASE = SchedulerSettings(
    layout=KvLayout(
        page_size=4,
        dtype="float32",
        dtype_bytes=4,
        groups=(KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=1, head_dim=8),),
    ),
    num_lanes=1,
    num_pages=(32,),
    max_model_len=100,
    max_running_requests=8,
    prefill_budget_tokens=16,
    has_host_memory=False,
    start_prefill_tokens_per_s=1000.0,
)
"""Small, without L2; tests change what they are about."""
CLIENT = ClientId("client")
GREEDY = DeviceSampling(seed=0)


@dataclass(slots=True)
class Answer:
    """What the client has heard of one request."""

    tokens: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    """Positions of the prompt that it was told logprobs of."""
    sources: dict[str, int] | None = None
    ending: str | None = None
    """A finish reason, or the kind of a failure."""
    retry_after_s: float = 0.0


class CoreDriver:
    """A core, its ranks and clients, and a stand-in for HostMemory."""

    def __init__(
        self,
        *,
        page_size: int = 4,
        is_attached: bool = True,
        max_staged_pages: int = 1000,
        **changes: Any,
    ) -> None:
        self.max_staged_pages = max_staged_pages
        layout = replace(changes.pop("layout", BASE.layout), page_size=page_size)
        self.settings = replace(BASE, layout=layout, **changes)
        self.core = SchedulerCore(self.settings)
        self.now_s = 0.0

        self.plans: list[deque[StepPlan]] = [deque() for _ in range(self.settings.num_lanes)]
        self.to_host: deque[Any] = deque()
        self.answers: dict[str, Answer] = {}
        self.endings: list[str] = []
        """Names of requests in the order of their ends."""
        self.kills: list[events.KillRank] = []
        self.compilations: list[events.CompileGrammar | events.DropGrammar] = []

        self._host = HostStandIn(self.settings.num_groups)
        self.ready, self.leases = self._host.ready, self._host.leases
        self.ready_by_group = self._host.groups
        self._copies: list[list[int]] = [[] for _ in range(self.settings.num_lanes)]
        self._names: list[dict[int, str]] = [{} for _ in range(self.settings.num_lanes)]
        self._rows: dict[tuple[int, int], dict[str, int]] = {}
        self._sampled: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self._scores = [PromptScores() for _ in range(self.settings.num_lanes)]
        self._connections: dict[int, ConnectionId] = {}
        self._num_connections = 0
        self._lookups: dict[str, LookupId] = {}
        self._num_requests = 0
        self._askings: dict[str, AskingId] = {}
        """The latest asking of each name."""
        self._num_askings = 0
        self._names_of_askings: dict[int, str] = {}
        self._last_submitted = ""
        self.host_connection = ConnectionId(0)

        if is_attached:
            for rank in range(self.settings.num_lanes * self.settings.ranks_per_lane):
                self.attach_rank(rank)
        if self.settings.has_host_memory:
            self.attach_host()
            self.host_turn()

    def send(self, event: events.Event) -> None:
        """Give the core an event and sort its effects."""
        effects = self.core.handle(event, self.now_s)
        check_group_columns(self.settings, effects)
        for effect in effects:
            match effect:
                case events.SendPlan():
                    self._take_plan(effect.lane, effect.plan)
                case events.SendHost():
                    self.to_host.append(effect.message)
                    if isinstance(effect.message, host.Lookup):
                        self._lookups[self._asker(effect.message)] = effect.message.lookup_id
                case events.SendClient():
                    self._hear(effect)
                case events.SendTokens():
                    pairs = zip(effect.askings.tolist(), effect.token_ids.tolist(), strict=True)
                    for asking, token in pairs:
                        name = self._names_of_askings[asking]
                        assert self.answers[name].ending is None, f"{name} hears after its end"
                        self.answers[name].tokens.append(token)
                case events.KillRank():
                    self.kills.append(effect)
                case events.CompileGrammar() | events.DropGrammar():
                    self.compilations.append(effect)

        self.core.check()

    def _take_plan(self, lane: int, plan: StepPlan) -> None:
        self.plans[lane].append(plan)
        for added in plan.added:
            self._names[lane][added.slot] = added.request_id
        names = [self._names[lane][slot] for slot in plan.row_slots.tolist()]
        sampled = zip(names, plan.row_output_positions.tolist(), strict=True)
        self._sampled[lane, plan.step] = [
            (name, position) for name, position in sampled if position >= 0
        ]
        self._rows[lane, plan.step] = dict(zip(names, plan.row_num_tokens.tolist(), strict=True))
        for copies in (plan.loads, plan.backups):
            self._copies[lane].extend(dict.fromkeys(copies.transfer_ids.tolist()))

    def _hear(self, effect: events.SendClient) -> None:
        delta = effect.delta
        answer = self.answers.setdefault(delta.request_id, Answer())
        assert answer.ending is None, f"{delta.request_id} hears after its end"
        answer.tokens.extend(delta.token_ids.tolist())
        for told in delta.prompt_logprobs:
            answer.scored.extend(range(told.start, told.start + len(told)))
        answer.sources = delta.cached_tokens_by_source or answer.sources
        if delta.finished is not None:
            answer.ending = delta.finished.value
        if delta.failure is not None:
            answer.ending = delta.failure.kind.value
            answer.retry_after_s = delta.failure.retry_after_s
        if answer.ending is not None:
            self.endings.append(delta.request_id)

    def submit(
        self,
        tokens: list[int],
        *,
        max_tokens: int | None = 4,
        name: str | None = None,
        client: str = CLIENT,
        sampling: DeviceSampling = GREEDY,
        **fields: Any,
    ) -> str:
        """A request arrives, a moment after the last event; returns its name."""
        self._num_requests += 1
        name = self._last_submitted = name or f"r{self._num_requests}"

        message = SubmitRequest(
            asking=self.new_asking(name),
            request_id=RequestId(name),
            token_ids=int32_array(tokens),
            sampling=sampling,
            max_tokens=max_tokens,
            **fields,
        )

        self.now_s += 1e-6
        self.send(events.ClientMessage(client_id=ClientId(client), message=message))
        return name

    def new_asking(self, name: str) -> AskingId:
        """The number of a submission under this name; `abort` and `stop` mean the latest."""
        self._num_askings += 1
        self._askings[name] = AskingId(self._num_askings)
        self._names_of_askings[self._num_askings] = name
        return self._askings[name]

    def abort(self, name: str) -> None:
        """The client ends a request."""
        message = AbortRequest(asking=self._askings[name], request_id=RequestId(name))
        self.send(events.ClientMessage(client_id=CLIENT, message=message))

    def stop(self, name: str) -> None:
        """The client has found a stop string."""
        message = StopRequest(asking=self._askings[name], request_id=RequestId(name))
        self.send(events.ClientMessage(client_id=CLIENT, message=message))

    def wait(self, duration_s: float) -> None:
        """Let time pass, with a tick whenever the core wants one."""
        end_s = self.now_s + duration_s
        while (due_s := self.core.next_deadline_s()) is not None and due_s <= end_s:
            self.now_s = max(self.now_s, due_s)
            self.send(events.Tick())
        self.now_s = end_s

    def send_tick(self) -> None:
        """The core looks at everything again."""
        self.send(events.Tick())

    def attach_rank(self, rank: int, incarnation: int = 1) -> None:
        """A GPU actor says hello."""
        for lane in self.core._ranks._step_group_of(rank).lanes:
            self._scores[lane].forget()
        self._connections[rank] = connection = self._next_connection()
        self.send(
            events.RankAttached(
                rank=rank, connection=connection, incarnation=incarnation, pid=100 + rank
            )
        )

    def connection_of(self, rank: int) -> ConnectionId:
        """The connection by which a rank is attached, or was."""
        return self._connections[rank]

    def _next_connection(self) -> ConnectionId:
        self._num_connections += 1
        return ConnectionId(self._num_connections)

    def lose_rank(self, rank: int) -> None:
        """A GPU actor's link closes: what the ranks of its step group were sent is lost."""
        for lane in self.core._ranks._step_group_of(rank).lanes:
            self.plans[lane].clear()
            self._copies[lane].clear()
        self.send(events.RankLost(rank=rank, connection=self._connections[rank]))

    def report(self, rank: int, message: Any) -> None:
        """A GPU actor says something."""
        self.send(
            events.RankMessage(rank=rank, connection=self._connections[rank], message=message)
        )

    def _ranks(self, lane: int) -> range:
        width = self.settings.ranks_per_lane
        return range(lane * width, (lane + 1) * width)

    def token_of(self, name: str, position: int) -> int:
        """What a request's output holds at a position."""
        return 1

    def step(self, lane: int = 0, *, token: int | None = None, seconds: float = 0.01) -> StepPlan:
        """The oldest plan is carried out in 10 ms, or so many, its copies are not.

        Rows sample `token`, or else `token_of`.
        """
        plan = self.plans[lane].popleft()
        self.now_s += seconds
        rows = self._sampled[lane, plan.step]
        sampled = [
            self.token_of(name, position) if token is None else token for name, position in rows
        ]

        tokens = int32_array(sampled)
        result = StepResult(rank=0, step=plan.step, token_ids=tokens, compute_s=seconds)
        self._scores[lane].apply(plan)
        result = self._scores[lane].add_to(result, plan, defaultdict(lambda: [*range(200)]))
        for rank in self._ranks(lane):
            self.report(rank, replace(result, rank=rank))
        return plan

    def finish_copies(self, lane: int = 0, *, is_stale: bool = False) -> int:
        """Every load and backup sent so far is done; returns their number."""
        ids, self._copies[lane] = self._copies[lane], []
        stale = int32_array(ids if is_stale else ())
        for rank in self._ranks(lane):
            if ids:
                self.report(
                    rank,
                    TransfersDone(
                        rank=rank, transfer_ids=int32_array(ids), stale_transfer_ids=stale
                    ),
                )
        return len(ids)

    def run(self) -> None:
        """Carry everything out, in turns, until nothing is left to do."""
        is_busy = True
        while is_busy:
            is_busy = bool(self.host_turn())
            for lane in range(self.settings.num_lanes):
                is_busy |= bool(self.finish_copies(lane))
                if self.plans[lane]:
                    self.step(lane)
                    is_busy = True

    def rows(self, plan: StepPlan, lane: int = 0) -> dict[str, int]:
        """Tokens that a plan computes, by request."""
        return self._rows[lane, plan.step]

    def num_hits(self, tokens: list[int], lane: int = 0) -> int:
        """Hits of the node that holds the last full page of a prompt."""
        match = self.core._lanes[lane].l1.tree.match(root_key(), pack_tokens(tokens))
        assert match.node is not None
        return match.node.num_hits

    def attach_host(self) -> None:
        """A HostMemory with L3 says hello; it holds nothing."""
        self.host_connection = self._next_connection()
        self.send(events.HostAttached(connection=self.host_connection))
        self.hear_host(
            host.StorageStatus(
                is_in_use=True,
                max_staged_pages=(self.max_staged_pages,) * self.settings.num_groups,
            )
        )

    def lose_host(self) -> None:
        """HostMemory's link closes: what it was sent is lost, and all that it held."""
        self._host.clear()
        self.to_host.clear()
        self.send(events.HostLost(connection=self.host_connection))
        self.to_host.clear()

    def hear_host(self, *messages: host.FromHost, connection: ConnectionId | None = None) -> None:
        """HostMemory says something, by default over the connection that it is attached by."""
        for message in messages:
            self.send(
                events.HostMessage(connection=connection or self.host_connection, message=message)
            )

    def keys(self, tokens: list[int], cache_salt: str | None = None) -> bytes:
        """Keys of the full pages of a prompt."""
        return extend_keys(
            root_key(cache_salt=cache_salt), pack_tokens(tokens), self.settings.page_size
        )

    def fill_l2(self, tokens: list[int]) -> bytes:
        """L2 holds the full pages of this prompt from now on; returns their keys."""
        keys = self.keys(tokens)
        for group in range(self.settings.num_groups):
            self.fill_group(group, keys)
        return keys

    def fill_group(self, group: int, keys: bytes) -> None:
        """L2 holds these pages of one KV group from now on."""
        self._host.groups[group].update(split_keys(keys))
        self.hear_host(host.MirrorUpdate(ready=mirror_keys(keys), group=group))

    def in_l2(self, group: int, keys: bytes) -> list[bool]:
        """Which of these pages L2 holds of a KV group."""
        return [key in self._host.groups[group] for key in split_keys(keys)]

    def drop_from_l2(self, keys: bytes) -> None:
        """L2 holds these no more."""
        for group in range(self.settings.num_groups):
            self.drop_from_group(group, keys)

    def drop_from_group(self, group: int, keys: bytes) -> None:
        """L2 holds these pages of one KV group no more."""
        self._host.groups[group].difference_update(split_keys(keys))
        self.hear_host(host.MirrorUpdate(dropped=mirror_keys(keys), group=group))

    def grant(self, num_pages: int) -> None:
        """HostMemory hands out free host pages."""
        self.hear_host(self._host.grant(num_pages))

    def host_turn(self) -> list[Any]:
        """HostMemory answers everything that it was sent; returns what that was."""
        messages = list(self.to_host)
        self.to_host.clear()
        for message in messages:
            self.hear_host(*self._host.answer(message))
        return messages

    def report_lookup(self, lookup: LookupId | str, sources: list[PageSource]) -> None:
        """HostMemory reports on a chain, or on that of a request's latest lookup."""
        lookup_id = self._lookups[lookup] if isinstance(lookup, str) else lookup
        self.hear_host(self._host.report(lookup_id, sources))

    def asker_of(self, lookup_id: LookupId) -> str:
        """The request or hint that a lookup was for."""
        return next(name for name, known in self._lookups.items() if known == lookup_id)

    def lookup_of(self, name: str) -> LookupId:
        """The latest lookup of a request."""
        return self._lookups[name]

    def _asker(self, lookup: host.Lookup) -> str:
        """The request or hint that a lookup is for."""
        asker = self.core._source._lookups.find(lookup.lookup_id)
        # One that was closed by the event that opened it belongs to the request of that event.
        return self._last_submitted if asker is None else asker.request_id
