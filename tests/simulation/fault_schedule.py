"""When which faults strike: those of an engine, and those of a node, which all engines feel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from raydix.runtime.cache.host import events as host_events
from raydix.runtime.scheduler import events
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.node import Node
from tests.simulation.random_clients import RandomClients
from tests.simulation.spells import slow_loads, slow_pulls, slow_storage

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

FAULT_SPAN = 1.5
"""Faults come until so many times as long after the start as requests do."""
_Schedule = list[tuple[int, Callable[[], None]]]
"""How often each fault strikes."""


def schedule_faults(
    cluster: Cluster, workload: Workload, clients: RandomClients, number: int
) -> None:
    """Let an engine's faults strike, and with those of the first engine its node's."""
    draw = random.Random(workload.seed + 2 if number == 0 else f"{workload.seed} {number}")
    node = cluster.node

    schedule = _engine_faults(cluster, workload, clients, draw)
    is_first = cluster is node.engines[0]
    if is_first:
        schedule += _node_faults(node, workload, draw)
    if (host := node.host_memory) is not None:
        schedule.append((workload.num_host_flaps, lambda: host.flap(cluster)))
    if is_first:
        schedule += _storage_faults(node, workload, draw)

    if number == 1:
        schedule.append((workload.num_engine_ends, cluster.end))

    for count, action in schedule:
        for _ in range(count):
            cluster.after(draw.uniform(0, FAULT_SPAN * workload.span_s), action)


def _engine_faults(
    cluster: Cluster, workload: Workload, clients: RandomClients, draw: random.Random
) -> _Schedule:
    num_ranks = len(cluster.ranks)

    def flush() -> None:
        cluster.num_faults["flushed"] += 1
        cluster.to_core(events.FlushL1())
        if draw.random() < 0.5:
            cluster.node.to_host(host_events.FlushHost())

    def sleep() -> None:
        cluster.sleep.put_to_sleep(draw.uniform(0.0, 1.0), with_weights=draw.random() < 0.5)

    return [
        (workload.num_rank_kills, lambda: cluster.kill_rank(draw.randrange(num_ranks))),
        (workload.num_rank_hangs, lambda: cluster.hang_rank(draw.randrange(num_ranks))),
        (workload.num_rank_flaps, lambda: cluster.ranks[draw.randrange(num_ranks)].flap()),
        (workload.num_flushes, flush),
        (workload.num_sleeps, sleep),
        (workload.num_scheduler_kills, lambda: cluster.scheduler.kill(draw.uniform(0.0, 0.3))),
        (workload.num_load_spells, lambda: slow_loads(cluster.world, draw)),
        (workload.num_client_losses, clients.lose_one),
        (workload.num_client_flaps, clients.flap_one),
        (workload.num_client_rests, lambda: clients.rest_one(draw.uniform(0.0, 1.0))),
    ]


def _node_faults(node: Node, workload: Workload, draw: random.Random) -> _Schedule:
    """What all engines of a node feel: its weather, and what becomes of HostMemory."""
    weather = workload.num_weather_changes, lambda: change_weather(node.world.faults, draw)
    host = node.host_memory
    if host is None:
        return [weather]
    return [
        weather,
        (workload.num_host_kills, host.kill),
        (workload.num_peer_flaps, lambda: host.pulls.flap()),
        (workload.num_peer_spells, lambda: slow_pulls(node.world, draw)),
        (workload.num_host_pauses, lambda: host.pause(draw.uniform(0.0, 0.5))),
    ]


def _storage_faults(node: Node, workload: Workload, draw: random.Random) -> _Schedule:
    storage = node.storage
    if storage is None:
        return []
    return [
        (workload.num_storage_kills, storage.kill),
        (workload.num_storage_flaps, storage.flap),
        (workload.num_storage_switches, storage.switch),
        (workload.num_storage_spells, lambda: slow_storage(node.world, draw)),
        (workload.num_storage_flushes, lambda: node.to_host(host_events.FlushStorage())),
    ]


def change_weather(faults: Faults, draw: random.Random) -> None:
    """Let links, steps and storage be as fast, and storage fail as often, as drawn."""
    faults.link_delay_s = draw.choice([0.0002, 0.002, 0.01])
    faults.step_s = draw.choice([0.0005, 0.002, 0.01, 0.03])
    faults.copy_s = draw.choice([0.002, 0.02, 0.1])
    faults.storage_s = draw.choice([0.003, 0.03, 0.03, 0.03, 0.03, 0.3, 0.3, 5.0])
    faults.storage_failure_fraction = draw.choice([0.0, 0.0, 0.0, 0.0, 0.1, 0.3, 1.0])
    faults.storage_full_fraction = draw.choice([0.0, 0.0, 0.0, 0.0, 0.5, 1.0])
    faults.bad_object_fraction = draw.choice([0.0, 0.0, 0.1, 0.3])
