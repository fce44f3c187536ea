"""Seeded random workloads for the simulated cluster, and what must hold after each of them."""

import random
from dataclasses import dataclass, field, replace

from raydix.ids import AskingId, RequestId
from raydix.runtime.cache import host_events
from raydix.runtime.cache.eviction import EVICTION_POLICIES
from raydix.runtime.cache.host_events import StorageSettings
from raydix.runtime.cache.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import (
    LoadPolicy,
    Policy,
    PrefetchSettings,
    PrefetchStrategy,
    SchedulerSettings,
    WritePolicy,
)
from tests.simulation.cluster import Cluster, Faults, MakeRank
from tests.simulation.ranks import VOCABULARY, SimulatedRank, expected_output

PAGE_SIZE = 4
LAYOUT = KvLayout(
    page_size=PAGE_SIZE,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=1, head_dim=8),),
)
STORAGE = StorageSettings(min_tokens=PAGE_SIZE, batch_pages=3)
BASE_SETTINGS = SchedulerSettings(
    layout=LAYOUT,
    num_lanes=2,
    num_pages=40,
    max_model_len=120,
    max_running_requests=6,
    prefill_budget_tokens=16,
    min_part_bytes=0,
    lookup_deadline_s=5.0,
    start_prefill_tokens_per_s=2000.0,
)
_SETTLE_S = 60.0
"""Longer than any grace period, deadline or back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run of the simulation does. Fractions are of the requests, `num_*` faults are in all."""

    seed: int
    settings: SchedulerSettings = BASE_SETTINGS
    l2_pages: int = 64
    storage: StorageSettings | None = STORAGE
    faults: Faults = field(default_factory=Faults)
    num_requests: int = 24
    span_s: float = 2.0
    num_prefixes: int = 3
    prefix_tokens: tuple[int, ...] = (4, 12, 24, 40)
    max_suffix_tokens: int = 20
    max_output_tokens: int = 30
    follow_up_fraction: float = 0.3
    salt_fraction: float = 0.1
    priority_fraction: float = 0.2
    deadline_fraction: float = 0.05
    abort_fraction: float = 0.15
    stop_fraction: float = 0.05
    num_client_losses: int = 0
    hint_fraction: float = 0.2
    """Of the requests are announced by a prefetch, which may be aborted."""
    num_rank_kills: int = 0
    num_host_kills: int = 0
    num_host_pauses: int = 0
    num_storage_kills: int = 0
    num_flushes: int = 0
    num_storage_switches: int = 0
    num_weather_changes: int = 0
    has_sound_leases: bool = True
    """False where leases are made to end early: loads may then be stale."""


def draw_workload(seed: int) -> Workload:
    """A workload in which every option has been drawn at random."""
    draw = random.Random(seed)
    has_storage = draw.random() < 0.6
    ranks_per_lane = 2 if draw.random() < 0.2 else 1
    settings = replace(
        BASE_SETTINGS,
        num_lanes=draw.choice([1, 2, 2, 3]),
        ranks_per_lane=ranks_per_lane,
        num_pages=draw.choice([30, 40, 64]),
        max_running_requests=draw.choice([2, 6, 16]),
        prefill_budget_tokens=draw.choice([4, 16, 64]),
        chunked_prefill=draw.random() < 0.8,
        policy=draw.choice(list(Policy)),
        eviction=draw.choice(sorted(EVICTION_POLICIES)),
        prefix_caching=draw.random() < 0.95,
        has_host_memory=has_storage or draw.random() < 0.8,
        load=draw.choice([LoadPolicy.ALWAYS, LoadPolicy.ALWAYS, *LoadPolicy]),
        write_policy=draw.choice([WritePolicy.WRITE_THROUGH, *WritePolicy]),
        prefetch=PrefetchSettings(
            strategy=draw.choice(list(PrefetchStrategy)),
            base_s=draw.choice([0.05, 1.0]),
            cap_at_recompute=draw.random() < 0.5,
        ),
        lookup_deadline_s=draw.choice([0.02, 0.05, 5.0]),
        start_prefill_tokens_per_s=draw.choice([500.0, 2000.0, 50_000.0]),
        start_load_bytes_per_s=draw.choice([1e4, 10e9]),
    )
    workload = Workload(
        seed=seed,
        settings=settings,
        l2_pages=draw.choice([8, 16, 64, 200]),
        storage=STORAGE if has_storage else None,
        faults=Faults(
            link_delay_s=draw.choice([0.0002, 0.002]),
            storage_failure_fraction=draw.choice([0.0, 0.1, 0.3]),
            bad_object_fraction=draw.choice([0.0, 0.3]),
        ),
        span_s=draw.choice([0.3, 2.0, 4.0]),
        num_client_losses=int(draw.random() < 0.2),
        num_rank_kills=draw.choice([0, 0, 1, 2, 4]) if ranks_per_lane == 1 else 0,
        num_host_kills=draw.choice([0, 0, 0, 1, 2]) if settings.has_host_memory else 0,
        num_host_pauses=draw.choice([0, 0, 2]) if settings.has_host_memory else 0,
        num_storage_kills=draw.choice([0, 0, 1]) if has_storage else 0,
        num_flushes=draw.choice([0, 0, 2, 6]),
        num_storage_switches=draw.choice([0, 0, 1, 2]) if has_storage else 0,
    )
    min_part_bytes = draw.choice([0, 2 * LAYOUT.payload_bytes(0), 8 << 20])
    return replace(workload, settings=replace(settings, min_part_bytes=min_part_bytes))


def run_workload(workload: Workload, make_rank: MakeRank = SimulatedRank) -> Cluster:
    """Run a workload to its end and prove that all went well; raises whatever went wrong."""
    cluster = Cluster(
        workload.settings,
        seed=workload.seed,
        l2_pages=workload.l2_pages,
        storage=workload.storage,
        faults=workload.faults,
        make_rank=make_rank,
    )
    clients = _Clients(cluster, workload)
    _schedule_faults(cluster, workload, clients)
    cluster.run(clients.are_done, limit_s=workload.span_s + 1000.0)
    unanswered = [request_id for request_id, answer in cluster.answers.items() if answer.ending is None]
    assert not unanswered, f"nothing happens any more, but these wait: {unanswered}"
    check_answers(cluster)
    end_s = cluster.now_s + _SETTLE_S
    cluster.run(lambda: cluster.now_s > end_s, limit_s=float("inf"))
    check_idle(cluster)
    num_stale = cluster.core.stats().get("stale_loads", 0)
    assert not num_stale or not workload.has_sound_leases, f"{num_stale} loads read pages that had changed hands"
    return cluster


class _Clients:
    """Two clients that send prompts with common prefixes, continue some conversations, and end some early."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        self._cluster = cluster
        self._workload = workload
        self._random = random.Random(workload.seed + 1)
        self._num_pending = workload.num_requests
        self._num_sent = 0
        self._clients: dict[RequestId, str] = {}
        self._prefixes = [
            self._tokens(self._random.choice(workload.prefix_tokens)) for _ in range(workload.num_prefixes)
        ]
        cluster.on_ending = self._on_ending
        for _ in range(workload.num_requests):
            cluster.after(self._random.uniform(0, workload.span_s), self._send_new)

    def are_done(self) -> bool:
        """Everything was sent and has ended."""
        return not self._num_pending

    def lose_one(self) -> None:
        """The second client vanishes; what it sends later is sent by a new one of the same name."""
        open_ids = [
            request_id
            for request_id, client in self._clients.items()
            if client == "b" and self._cluster.answers[request_id].ending is None
        ]
        self._cluster.lose_client("b", open_ids)
        self._num_pending -= len(open_ids)

    def _tokens(self, num_tokens: int) -> list[int]:
        return self._tokens_of(self._random, num_tokens)

    def _tokens_of(self, draw: random.Random, num_tokens: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(num_tokens)]

    def _send_new(self) -> None:
        # Drawn apart, so that what is asked for does not depend on the hints.
        draw = random.Random(f"{self._workload.seed} {self._num_sent}")
        if draw.random() < self._workload.hint_fraction:
            request_id = RequestId(f"hint-{len(self._cluster.hints)}")
            tokens = draw.choice(self._prefixes) + self._tokens_of(draw, draw.randrange(20))
            asking = AskingId(len(self._cluster.hints))
            hint = PrefetchPrompt(asking=asking, request_id=request_id, token_ids=int32_array(tokens))
            self._cluster.prefetch(hint, "hinter")
            if draw.random() < self._workload.abort_fraction:
                self._cluster.after(draw.uniform(0, 0.4), lambda: self._cluster.abort(request_id, "hinter"))
        suffix = self._tokens(self._random.randrange(self._workload.max_suffix_tokens + 1))
        prompt = self._random.choice(self._prefixes) + suffix
        salt = "salt" if self._random.random() < self._workload.salt_fraction else None
        self._send(prompt[: self._workload.settings.max_model_len - 1], salt)

    def _send(self, prompt: list[int], cache_salt: str | None) -> None:
        workload, draw = self._workload, self._random
        asking, request_id = AskingId(self._num_sent), RequestId(f"r{self._num_sent}")
        self._num_sent += 1
        client = self._clients[request_id] = draw.choice("ab")
        message = SubmitRequest(
            asking=asking,
            request_id=request_id,
            token_ids=int32_array(prompt),
            sampling=DeviceSampling(seed=0),
            max_tokens=draw.choice([None, *range(1, workload.max_output_tokens)]),
            stop_token_ids=(draw.randrange(VOCABULARY),) if draw.random() < workload.stop_fraction else (),
            priority=draw.randrange(-2, 3) if draw.random() < workload.priority_fraction else 0,
            cache_salt=cache_salt,
            session_id=draw.choice([None, "s"]),
            deadline_s=draw.uniform(0.05, 1.0) if draw.random() < workload.deadline_fraction else None,
        )
        self._cluster.submit(message, client)
        if draw.random() < workload.abort_fraction:
            end = draw.choice([self._cluster.abort, self._cluster.stop])
            self._cluster.after(draw.uniform(0, 0.4), lambda: end(request_id, client))

    def _on_ending(self, request_id: RequestId) -> None:
        answer = self._cluster.answers[request_id]
        prompt = [*answer.submit.token_ids.tolist(), *answer.tokens]
        room = self._workload.settings.max_model_len - 1 - len(prompt)
        wants_more = self._random.random() < self._workload.follow_up_fraction
        if answer.ending == "length" and wants_more and room > self._workload.max_suffix_tokens:
            prompt += self._tokens(1 + self._random.randrange(self._workload.max_suffix_tokens))
            self._cluster.after(self._random.uniform(0, 0.5), lambda: self._send(prompt, answer.submit.cache_salt))
        else:
            self._num_pending -= 1


def _schedule_faults(cluster: Cluster, workload: Workload, clients: _Clients) -> None:
    draw = random.Random(workload.seed + 2)

    def kill_rank() -> None:
        rank = draw.randrange(workload.settings.num_lanes)
        if cluster.ranks[rank].is_alive:
            cluster.kill_rank(rank)

    def kill_host() -> None:
        if cluster.host is not None:
            cluster.kill_host()

    def flush() -> None:
        cluster.to_core(events.FlushL1())
        cluster.to_host(host_events.FlushHost())

    schedule = [
        (workload.num_rank_kills, kill_rank),
        (workload.num_host_kills, kill_host),
        (workload.num_host_pauses, lambda: cluster.pause_host(draw.uniform(0.0, 0.5))),
        (workload.num_storage_kills, cluster.kill_storage),
        (workload.num_flushes, flush),
        (workload.num_storage_switches, cluster.switch_storage),
        (workload.num_client_losses, clients.lose_one),
        (workload.num_weather_changes, lambda: change_weather(cluster.faults, draw)),
    ]
    for count, action in schedule:
        for _ in range(count):
            cluster.after(draw.uniform(0, 1.5 * workload.span_s), action)


def change_weather(faults: Faults, draw: random.Random) -> None:
    """From now on links, steps and storage are quicker or slower, and storage fails more or less."""
    faults.link_delay_s = draw.choice([0.0002, 0.002, 0.01])
    faults.step_s = draw.choice([0.002, 0.01, 0.03])
    faults.copy_s = draw.choice([0.002, 0.02, 0.1])
    faults.storage_s = draw.choice([0.003, 0.03, 0.03, 0.03, 0.03, 0.3, 0.3, 5.0])
    faults.storage_failure_fraction = draw.choice([0.0, 0.0, 0.0, 0.0, 0.1, 0.3, 1.0])
    faults.storage_full_fraction = draw.choice([0.0, 0.0, 0.0, 0.0, 0.5, 1.0])
    faults.bad_object_fraction = draw.choice([0.0, 0.0, 0.1, 0.3])


def check_answers(cluster: Cluster) -> None:
    """Every answer is a prefix of what the tokens alone demand, complete unless it was ended, and accounted for."""
    for request_id, answer in cluster.answers.items():
        submit = answer.submit
        prompt = submit.token_ids.tolist()
        expected = expected_output(prompt, len(answer.tokens), submit.cache_salt)
        assert answer.tokens == expected, f"{request_id}: {answer.tokens} instead of {expected}"
        room = cluster.settings.max_model_len - len(prompt)
        max_tokens = room if submit.max_tokens is None else min(room, submit.max_tokens)
        assert len(answer.tokens) <= max_tokens
        stops = [index for index, token in enumerate(answer.tokens) if token in submit.stop_token_ids]
        assert stops in ([], [len(answer.tokens) - 1]), f"{request_id} went on after a stop token"
        if answer.ending == "length":
            assert len(answer.tokens) == max_tokens, f"{request_id} has {len(answer.tokens)} of {max_tokens} tokens"
        if answer.tokens or answer.ending == "abort":
            assert answer.sources is not None, f"{request_id} was not told where its prompt came from"
            assert sum(answer.sources.values()) == len(prompt), f"{request_id}: {answer.sources}, {len(prompt)} tokens"


def check_idle(cluster: Cluster) -> None:
    """Nothing is held by anybody once all has ended, and every prefetch has been answered."""
    assert None not in cluster.hints.values(), cluster.hints
    core, host = cluster.core, cluster.host
    core.check()
    assert core.is_idle
    stats = core.stats()
    held = ("leases_wanted", "transfers_in_flight", "l1_locked_pages", "num_requests_running", "num_requests_waiting")
    assert not any(stats[name] for name in held), {name: stats[name] for name in held}
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]
    assert cluster.num_overdue_kills == 0, "a healthy rank was killed for being late"
    if cluster.settings.has_host_memory:
        assert host is not None
        host.check()
        figures = host.stats()
        assert figures["pages_filling"] == figures["pages_granted"], figures
        assert not any(figures[name] for name in ("leases", "pages_quarantined", "lookups", "pages_reading")), figures


def sources_of(cluster: Cluster) -> dict[str, int]:
    """Prompt tokens of all requests, by source."""
    totals: dict[str, int] = {}
    for answer in cluster.answers.values():
        for source, num_tokens in (answer.sources or {}).items():
            totals[source] = totals.get(source, 0) + num_tokens
    return totals
