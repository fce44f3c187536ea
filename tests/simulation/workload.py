"""Seeded random workloads for the simulated cluster, and what must hold after each of them."""

import random
from dataclasses import dataclass, field, replace

from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.config.policies import (
    EvictionPolicy,
    LoadPolicy,
    PrefetchStrategy,
    SchedulingPolicy,
    WritePolicy,
)
from raydix.runtime.scheduler.settings import PrefetchSettings, SchedulerSettings
from tests.simulation.checks import check_answers, check_idle, is_told_of_objects
from tests.simulation.cluster import Cluster, MakeRank
from tests.simulation.evictions import draw_evictions
from tests.simulation.extremes import extreme_prefixes, extreme_settings, extreme_storage
from tests.simulation.fault_schedule import FAULT_SPAN, schedule_faults
from tests.simulation.faults import Faults
from tests.simulation.hardships import (
    TURNED_OVER_FRACTION,
    turn_over,
    with_odd_prefixes,
    with_slow_writes,
    with_spells,
)
from tests.simulation.layouts import (
    FULL_AND_LATENT,
    LATENT,
    LAYOUT,
    PAGE_SIZE,
    TWO_GROUPS,
    draw_states,
    with_windows,
)
from tests.simulation.narrow_l2 import narrow_workload
from tests.simulation.node import Node
from tests.simulation.queue_order import draw_policy
from tests.simulation.quiet_end import QuietEnd
from tests.simulation.random_clients import RandomClients
from tests.simulation.ranks import SimulatedRank
from tests.simulation.reuse_laws import check_reuse, check_written
from tests.simulation.spells import LONGEST_SPELL_S
from tests.simulation.step_groups import with_step_groups
from tests.simulation.world import World

STORAGE = StorageSettings(min_tokens=PAGE_SIZE, batch_pages=3, max_told_objects=50)
BASE_SETTINGS = SchedulerSettings(
    layout=LAYOUT,
    num_lanes=2,
    num_pages=(40,),
    max_model_len=120,
    max_running_requests=6,
    prefill_budget_tokens=16,
    min_part_bytes=0,
    lookup_deadline_s=5.0,
    # Longer than any step or copy takes, be the weather as it may.
    step_deadline_s=20.0,
    first_step_deadline_s=40.0,
    start_prefill_tokens_per_s=2000.0,
)
_WINDOWED_FRACTION = 0.5
"""The part of workloads that have layers which look back over a window."""
_EXTREME_FRACTION = 0.3
"""The part of workloads that are at the edges of what may be configured."""
_QUIET_FRACTION = 0.35
"""The part of workloads that end in quiet."""
_SETTLE_S = 60.0
"""Longer than any grace period, deadline or back-off."""
_LONGEST_DRAW = 19.0
"""Means: no delay that the clock draws is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run of the simulation does. Fractions are of requests, `num_*` faults in all."""

    seed: int
    settings: SchedulerSettings = BASE_SETTINGS
    l2_pages: int = 64
    l2_eviction: EvictionPolicy = EvictionPolicy.LRU
    storage: StorageSettings | None = STORAGE
    max_objects: int | None = None
    """The most objects of L3; None: it is not bounded."""
    faults: Faults = field(default_factory=Faults)
    num_nodes: int = 1
    """Nodes that pull pages from each other, each with as many engines."""
    num_engines: int = 1
    """Engines that share a node's L2, each with as many clients, requests and faults."""
    num_engine_ends: int = 0
    """Whether the second engine of all ends for good."""
    num_requests: int = 24
    span_s: float = 2.0
    num_prefixes: int = 3
    prefix_tokens: tuple[int, ...] = (4, 12, 24, 40)
    comes_in_turns: bool = False
    """One prefix after the other returns; False: any of them may be next."""
    max_suffix_tokens: int = 20
    max_output_tokens: int = 30
    follow_up_fraction: float = 0.3
    salt_fraction: float = 0.1
    priority_fraction: float = 0.2
    deadline_fraction: float = 0.05
    abort_fraction: float = 0.15
    stop_fraction: float = 0.05
    score_fraction: float = 0.0
    """Ask for the logprobs of their prompts."""
    logprob_fraction: float = 0.0
    """Ask for the logprobs of their output: they decode apart from the batch."""
    grammar_fraction: float = 0.0
    """Go by a grammar, which refuses most tokens."""
    sample_fraction: float = 0.0
    """The part of requests that are followed at once by one more sample of their prompt."""
    hand_over_fraction: float = 0.0
    """Ask for their first token alone, and for the rest at the next engine, if there are several.
    """
    foretold_fraction: float = 0.8
    """The part of these of which the next engine is told beforehand."""
    num_client_losses: int = 0
    hint_fraction: float = 0.2
    """The part of the requests that are announced by a prefetch, which may be aborted."""
    retention_fraction: float = 0.0
    """The part of requests that are of one of several sessions and bring a hint, or are followed
    by one; sessions of the salt `salt` never give any.
    """
    num_rank_kills: int = 0
    num_rank_hangs: int = 0
    num_host_kills: int = 0
    num_host_pauses: int = 0
    num_storage_kills: int = 0
    num_flushes: int = 0
    num_storage_flushes: int = 0
    num_storage_switches: int = 0
    num_storage_spells: int = 0
    num_peer_flaps: int = 0
    num_peer_spells: int = 0
    num_load_spells: int = 0
    num_weather_changes: int = 0
    num_host_flaps: int = 0
    num_rank_flaps: int = 0
    num_storage_flaps: int = 0
    num_client_flaps: int = 0
    num_client_rests: int = 0
    num_scheduler_kills: int = 0
    num_sleeps: int = 0
    check_interval: int = 5
    """Every so many events the cores prove their invariants."""
    has_quiet_end: bool = False
    """When all is well again, prompts show that every tier is used again."""
    has_sound_leases: bool = True
    """False where leases are made to end early: loads may then be stale."""


def draw_workload(seed: int) -> Workload:
    """A workload in which every option has been drawn at random."""
    draw = random.Random(seed)
    has_storage = draw.random() < 0.6
    settings = _draw_settings(draw, has_storage)
    part = random.Random(seed + 12).choice([256, 8])
    settings = replace(settings, few_pages_part=part)
    own_draw = random.Random(seed + 3)
    if own_draw.random() < _WINDOWED_FRACTION:
        settings = with_windows(own_draw, settings)
        layout = draw_states(random.Random(seed + 16), settings.layout)
        settings = replace(settings, layout=layout)
    max_repeats = random.Random(seed + 18).choice([0, 1, 3, 16])
    settings = with_step_groups(random.Random(seed + 4), replace(settings, max_repeats=max_repeats))
    settings = replace(settings, policy=draw_policy(seed, settings.policy))
    workload = Workload(
        seed=seed,
        settings=settings,
        l2_pages=draw.choice([8, 16, 64, 200]) * PAGE_SIZE // settings.page_size,
        storage=STORAGE if has_storage else None,
        faults=Faults(
            link_delay_s=draw.choice([0.0002, 0.002]),
            turn_s=draw.choice([0.0, 0.0002, 0.003]),
            report_s=draw.choice([0.0, 0.001, 0.03]),
            storage_failure_fraction=draw.choice([0.0, 0.1, 0.3]),
            bad_object_fraction=draw.choice([0.0, 0.3]),
            lag_fraction=draw.choice([0.0, 0.2]),
            outbox_bytes=draw.choice([100, 300, 1 << 20]),
            not_finite_fraction=random.Random(seed + 6).choice([0.0, 0.0, 0.0, 0.02]),
        ),
        span_s=draw.choice([0.3, 2.0, 4.0]),
        score_fraction=random.Random(seed + 5).choice([0.0, 0.15, 0.4]),
        num_client_losses=int(draw.random() < 0.2),
        logprob_fraction=random.Random(seed + 7).choice([0.0, 0.0, 0.2, 1.0]),
        sample_fraction=random.Random(seed + 8).choice([0.0, 0.0, 0.3]),
        grammar_fraction=random.Random(seed + 17).choice([0.0, 0.0, 0.5]),
        num_storage_flushes=random.Random(seed + 9).choice([0, 0, 2]),
        num_rank_hangs=random.Random(seed + 10).choice([0, 0, 0, 1, 3]),
    )
    workload = replace(
        workload, retention_fraction=random.Random(seed + 17).choice([0.0, 0.0, 0.6])
    )
    workload = _draw_faults(draw, workload)
    extreme_draw = random.Random(seed + 11)
    is_crowded = has_storage and draw.random() < 0.2
    hard_draw = random.Random(seed + 13)
    if extreme_draw.random() < _EXTREME_FRACTION:
        workload = _to_extremes(extreme_draw, workload)
    elif hard_draw.random() < TURNED_OVER_FRACTION / (1 - _EXTREME_FRACTION):
        workload = turn_over(hard_draw, replace(workload, storage=STORAGE))
    elif is_crowded:
        workload = _crowd(workload)
    workload = with_odd_prefixes(hard_draw, workload)
    workload = with_slow_writes(hard_draw, with_spells(hard_draw, workload))
    workload = narrow_workload(random.Random(seed + 14), workload)
    is_quiet = random.Random(seed + 15).random() < _QUIET_FRACTION
    together = random.Random(seed + 20).choice([0.0, 0.5, 1.0])
    faults = replace(workload.faults, together_fraction=together)
    workload = draw_evictions(replace(workload, has_quiet_end=is_quiet, faults=faults))
    return _bound_storage(workload)


def _bound_storage(workload: Workload) -> Workload:
    """Some L3 evict where there are hints; the laws of a quiet end go by all that was written."""
    if workload.has_quiet_end or not workload.retention_fraction:
        return workload
    max_objects = random.Random(workload.seed + 19).choice([None, None, 20, 100])
    return replace(workload, max_objects=max_objects)


def _draw_settings(draw: random.Random, has_storage: bool) -> SchedulerSettings:
    settings = replace(
        BASE_SETTINGS,
        num_lanes=draw.choice([1, 2, 2, 3]),
        ranks_per_lane=draw.choice([1, 1, 1, 1, 1, 1, 1, 2, 2, 4]),
        num_pages=(draw.choice([30, 40, 64]),),
        max_running_requests=draw.choice([2, 6, 16]),
        prefill_budget_tokens=draw.choice([4, 16, 64]),
        chunked_prefill=draw.random() < 0.8,
        policy=draw.choice([SchedulingPolicy.FCFS, SchedulingPolicy.LPM]),
        eviction=draw.choice(sorted(set(EVICTION_POLICIES) - {EvictionPolicy.TLRU})),
        prefix_caching=draw.random() < 0.95,
        has_host_memory=has_storage or draw.random() < 0.8,
        load=draw.choice([LoadPolicy.ALWAYS, LoadPolicy.ALWAYS, *LoadPolicy]),
        write_policy=draw.choice([WritePolicy.WRITE_THROUGH, *WritePolicy]),
        min_part_bytes=draw.choice([0, 2 * LAYOUT.payload_bytes(0), 8 << 20]),
        prefetch=PrefetchSettings(
            strategy=draw.choice(list(PrefetchStrategy)),
            base_s=draw.choice([0.05, 1.0]),
            cap_at_recompute=draw.random() < 0.5,
        ),
        lookup_deadline_s=draw.choice([0.02, 0.05, 5.0]),
        start_prefill_tokens_per_s=draw.choice([500.0, 2000.0, 50_000.0]),
        start_load_bytes_per_s=draw.choice([1e4, 10e9]),
    )
    if draw.random() < 0.4:
        num_pages = (*settings.num_pages, draw.choice([30, 50, 100]))
        settings = replace(settings, layout=TWO_GROUPS, num_pages=num_pages)
    if draw.random() < (0.6 if settings.ranks_per_lane > 1 else 0.1):
        layout = LATENT if len(settings.num_pages) == 1 else FULL_AND_LATENT
        settings = replace(settings, layout=layout)
    return settings


def _to_extremes(draw: random.Random, workload: Workload) -> Workload:
    """The same faults where settings and prompts are at the edges of what may be."""
    settings = extreme_settings(draw, workload.settings)
    has_storage = workload.storage is not None
    return replace(
        workload,
        settings=settings,
        storage=extreme_storage(draw, settings.page_size) if has_storage else None,
        prefix_tokens=extreme_prefixes(draw, settings),
        max_suffix_tokens=draw.choice([1, 2, 20]),
        # Most would be longer than any prompt may be.
        hint_fraction=0.0,
    )


def _draw_faults(draw: random.Random, workload: Workload) -> Workload:
    """About a third of workloads lack a kind of fault; one without a part to hit does nothing."""
    return replace(
        workload,
        num_rank_kills=draw.choice([0, 0, 1, 2, 4]),
        num_rank_flaps=draw.choice([0, 0, 1, 4]),
        num_host_kills=draw.choice([0, 0, 0, 1, 2]),
        num_host_pauses=draw.choice([0, 0, 2]),
        num_host_flaps=draw.choice([0, 0, 1, 4]),
        num_storage_kills=draw.choice([0, 0, 1]),
        num_storage_flaps=draw.choice([0, 0, 1, 3]),
        num_storage_switches=draw.choice([0, 0, 1, 2]),
        num_flushes=draw.choice([0, 0, 2, 6]),
        num_client_flaps=draw.choice([0, 0, 1, 2]),
        num_client_rests=draw.choice([0, 0, 1, 3]),
        num_scheduler_kills=draw.choice([0, 0, 0, 1, 2]),
    )


def _crowd(workload: Workload) -> Workload:
    """Deep queues wait for L3 with little room in L2: lookups take turns, some are repeated."""
    prefetch = replace(workload.settings.prefetch, strategy=PrefetchStrategy.WAIT_COMPLETE)
    return replace(
        workload,
        settings=replace(workload.settings, prefetch=prefetch, prefix_caching=True),
        l2_pages=min(workload.l2_pages, 24),
        num_requests=60,
        num_prefixes=8,
        num_flushes=8,
        prefix_tokens=(12, 24, 40),
        hint_fraction=0.8,
        num_storage_switches=0,
        faults=replace(workload.faults, storage_failure_fraction=0.0, outbox_bytes=1 << 20),
    )


def run_workload(workload: Workload, make_rank: MakeRank = SimulatedRank) -> Cluster:
    """Run a workload to its end and prove that all went well; raises whatever went wrong."""
    engines = _start_engines(workload, make_rank)
    first = engines[0]
    clients = [RandomClients(engine, workload, number) for number, engine in enumerate(engines)]
    for former, own in zip([clients[-1], *clients], clients, strict=False):
        former.hands_over_to(own)
    for number, (engine, own) in enumerate(zip(engines, clients, strict=True)):
        schedule_faults(engine, workload, own, number)

    are_done = [each.are_done for each in clients]
    first.run(lambda: all(is_done() for is_done in are_done), limit_s=workload.span_s + 1000.0)
    for engine in engines:
        unanswered = [
            f"{answer.submit.request_id} of {answer.link.client_id}"
            for answer in engine.history
            if answer.ending is None
        ]
        assert not unanswered, f"nothing happens any more, but these wait: {unanswered}"
        check_answers(engine)

    # Faults that were still to come have their time, too: a rank that is killed last of all ends
    # its copies and exits before the next one starts.
    faults = first.faults
    settle_s = _SETTLE_S + LONGEST_SPELL_S + _LONGEST_DRAW * (faults.copy_s + 2 * faults.linger_s)
    end_s = max(first.now_s, FAULT_SPAN * workload.span_s) + settle_s
    first.run_until(end_s)
    nodes = first.world.nodes
    first.run(lambda: all(map(is_told_of_objects, nodes)), limit_s=end_s + _SETTLE_S)
    for node in nodes:
        check_idle(node)
    if workload.has_quiet_end:
        _end_in_quiet(first, workload)
    num_stale = sum(int(engine.count("stale_loads")) for engine in engines)
    assert not num_stale or not workload.has_sound_leases, (
        f"{num_stale} loads read pages that had changed hands"
    )
    return first


def _start_engines(workload: Workload, make_rank: MakeRank) -> list[Cluster]:
    """The engines of all nodes, which have all attached."""
    world = World(workload.seed, replace(workload.faults))
    for _ in range(workload.num_nodes):
        Node(
            world,
            workload.settings,
            l2_pages=workload.l2_pages,
            storage=workload.storage,
            max_objects=workload.max_objects,
            l2_eviction=workload.l2_eviction,
        )
    for node in world.nodes:
        for _ in range(workload.num_engines):
            Cluster(node, make_rank)
    world.check_interval = workload.check_interval
    return [engine for node in world.nodes for engine in node.engines]


def _end_in_quiet(cluster: Cluster, workload: Workload) -> None:
    """Prove that what the tiers have is used again; the answers are as exact as any others."""
    num_asked = len(cluster.history)
    end = QuietEnd(cluster, workload.seed)
    check_reuse(end.run(), cluster.settings.load)
    check_answers(cluster, first=num_asked)

    # Objects that were lost or deleted come back as they are used.
    are_kept = not workload.num_storage_flushes and not workload.faults.bad_object_fraction
    if workload.storage is not None and are_kept and not workload.num_weather_changes:
        check_written(end.num_unwritten)
    cluster.faults.quieten()
    cluster.run_until(cluster.now_s + _SETTLE_S)
    check_idle(cluster.node)
