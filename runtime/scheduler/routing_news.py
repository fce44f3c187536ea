"""What clients that choose among several replicas are told of this one: its keys and its load."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from raydix.ids import ClientId
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.messages.kv_events import KvEvent, Tier
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import EngineNews, NodeReport
from raydix.runtime.routing.load_average import LoadAverage
from raydix.runtime.scheduler.events import SendNews
from raydix.runtime.scheduler.key_news import KeyNews
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.load_report import INTERVAL_S, LEAST_S, is_worth_telling
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.page_news import shared_state
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sleep import Sleep
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Alarm, Timers


@dataclass(slots=True)
class _Client:
    num_sent: int = 0
    """The requests that it has sent since it began to follow."""
    is_asking: bool = False
    """Whether it has asked for news since it was last told any."""
    is_anew: bool = True
    """Whether it is about to be told all keys."""
    next_s: float = -math.inf
    """The time before which it is told nothing."""
    told: NodeReport | None = None
    told_s: float = -math.inf
    alarm: Alarm = field(default_factory=Alarm)


class RoutingNews:
    """Owns: which clients route, what each was told last of the load, and the averages of that."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        keys: KeyNews,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        rates: Rates,
        sleep: Sleep,
        timers: Timers,
        outbox: Outbox,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._sleep = sleep
        self._requests, self._lanes, self._source = requests, lanes, source
        self._rates, self._timers, self._outbox = rates, timers, outbox
        self._clients: dict[ClientId, _Client] = {}
        self._load = LoadAverage(0.0)
        self._is_busy = False
        reaches = settings.reaches
        self._group = reaches.index(None) if settings.has_full else 0
        """The KV group by which prompts are found: one that keeps all pages, if there is one."""

    def note_request(self, client_id: ClientId, now_s: float) -> None:
        """A client has sent a request."""
        self._load.arrive(now_s)
        if client_id in self._clients:
            self._clients[client_id].num_sent += 1

    def ask(self, client_id: ClientId, now_s: float) -> None:
        """A client asks for what is new, for the first time or again."""
        client = self._clients.setdefault(client_id, _Client())
        client.is_asking = True
        if not self._keys.follows(client_id):
            self._keys.begin(client_id, self._state(), self._group)
            client.is_anew = True

    def forget(self, client_id: ClientId) -> None:
        """A client is gone."""
        self._clients.pop(client_id, None)
        self._keys.end(client_id)

    def figures(self, now_s: float) -> dict[str, float]:
        """The time that a new request would wait here; nothing while that is not known."""
        busy_s = self._busy_s(now_s)
        return {} if busy_s is None else {"prompt_wait_s": busy_s}

    def tell(self, now_s: float) -> None:
        """Tell those who have asked, once there is something."""
        if not self._clients:
            return
        self._note_work(now_s)
        for client_id, client in self._clients.items():
            if not client.is_asking:
                continue
            if now_s < client.next_s:
                self._look_again(client, client.next_s, now_s)
            else:
                self._answer(client_id, client, now_s)

    def _answer(self, client_id: ClientId, client: _Client, now_s: float) -> None:
        if not self._keys.follows(client_id):
            # Too much has come: all is told anew, which it asks for as before.
            self.ask(client_id, now_s)
        report = self._report(client, now_s)
        is_due = report is not None and (
            client.told is None or is_worth_telling(client.told, report, now_s - client.told_s)
        )
        if not (is_due or client.is_anew or self._keys.has_more(client_id)):
            client.next_s = now_s + LEAST_S
            last_s = now_s if client.told is None else client.told_s
            self._look_again(client, max(last_s + INTERVAL_S, client.next_s), now_s)
            return

        events, is_whole = self._keys.take(client_id)
        news = EngineNews(is_anew=client.is_anew, is_whole=is_whole, events=events, report=report)
        self._outbox.emit(SendNews(client_id=client_id, news=news))
        client.is_asking = client.is_anew = False
        client.next_s = now_s if self._keys.has_more(client_id) else now_s + LEAST_S
        if report is not None:
            client.told, client.told_s = report, now_s

    def _look_again(self, client: _Client, time_s: float, now_s: float) -> None:
        if client.alarm.advance(time_s, now_s):
            self._timers.add(time_s)

    def _note_work(self, now_s: float) -> None:
        is_busy = any(lane.prefilling or len(lane.waiting) for lane in self._lanes)
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            note = self._load.work if is_busy else self._load.rest
            note(now_s)

    def _report(self, client: _Client, now_s: float) -> NodeReport | None:
        """The load as it is; None if no lane of an engine awake has its ranks: nobody knows."""
        is_asleep, busy_s = not self._sleep.is_awake, self._busy_s(now_s)
        if busy_s is None and not is_asleep:
            return None
        return NodeReport(
            num_seen=client.num_sent,
            busy_s=busy_s or 0.0,
            num_requests=len(self._requests.living),
            arrivals_per_s=self._load.arrivals_per_s(now_s),
            busy_fraction=self._load.busy_fraction(now_s),
            num_ingresses=len(self._clients),
            prefill=self._rates.prefill.likely_line(now_s),
            load=self._load_line(now_s),
            pull=self._pull_line(now_s),
            page_size=self._settings.page_size,
            interval_s=INTERVAL_S,
            num_decoding=sum(len(lane.batch) for lane in self._lanes),
            is_full=self._num_waiting >= self._settings.max_waiting_requests,
            is_asleep=is_asleep,
            num_free_slots=self._num_free_slots,
            slot_s=self._slot_s(now_s),
            role=self._settings.role,
            l2=self._source.view.l2 if self._source.view.is_usable else None,
        )

    @property
    def _num_waiting(self) -> int:
        return self._requests.num_waiting(sum(len(lane.waiting) for lane in self._lanes))

    @property
    def _num_free_slots(self) -> int:
        num_lanes = sum(lane.is_attached for lane in self._lanes)
        return num_lanes * self._settings.max_running_requests - len(self._requests.living)

    def _slot_s(self, now_s: float) -> float:
        """The time between two requests that end, while no more can run; else 0.

        Those that run are halfway through, one with the other: each has its slot for twice as long
        as they have had theirs, on average.
        """
        if self._num_free_slots > 0:
            return 0.0
        running = [request for lane in self._lanes for request in lane.running.values()]
        admitted = [each.admitted_s for each in running if each.admitted_s is not None]
        if not admitted:
            return 0.0
        return 2 * sum(now_s - each for each in admitted) / len(admitted) ** 2

    def _busy_s(self, now_s: float) -> float | None:
        """The time that a request waits for the prompts of others; None if no lane has ranks."""
        lanes = [lane for lane in self._lanes if lane.is_attached]
        if not lanes:
            return None
        num_placed = min(lane.waiting.num_tokens + lane.num_tokens_to_compute for lane in lanes)
        num_new = sum(request.num_tokens for request in self._requests.unplaced.values())
        prefill, budget = (
            self._rates.prefill.likely_line(now_s),
            self._settings.prefill_budget_tokens,
        )
        # Prompts fill steps, each of which has a fixed time, too.
        token_s = prefill.predict_s(budget) / budget
        return (num_placed + num_new / len(lanes)) * token_s

    def _load_line(self, now_s: float) -> Line:
        """The time of loads by their pages, or of computing them where that is done instead."""
        if self._settings.load is LoadPolicy.NEVER:
            return _by_page(self._rates.prefill.likely_line(now_s), self._settings.page_size)
        return _by_page(self._rates.load.line(now_s), self._page_bytes)

    def _pull_line(self, now_s: float) -> Line | None:
        """The time to fetch pages from another node; None if there is none."""
        origins = self._source.origins
        if not origins.peers:
            return None
        # Of all of them together: what is believed of one that was never tried says nothing.
        return _by_page(origins.pull_rate.line(now_s), self._page_bytes)

    @property
    def _page_bytes(self) -> int:
        """The bytes that one rank loads for a page of all that a long prompt has."""
        pairs = zip(self._settings.loaded_bytes, self._settings.reaches, strict=True)
        full = [num_bytes for num_bytes, reach in pairs if reach is None]
        return sum(full or self._settings.loaded_bytes)

    def _state(self) -> Iterator[KvEvent]:
        """All keys that there are of L1 and L2."""
        parts: list[Iterable[KvEvent]] = [lane.l1.news.state() for lane in self._lanes]
        parts.append(shared_state(Tier.L2, self._group, self._source.view.keys.told(self._group)))
        for part in parts:
            yield from part


def _by_page(line: Line, page_amount: int) -> Line:
    """The same line, by pages of so many units."""
    return Line(line.fixed_s, line.unit_s * page_amount)
