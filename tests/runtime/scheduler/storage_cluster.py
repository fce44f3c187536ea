"""A cluster of one lane with storage that is asked prompt by prompt, its tiers emptied between."""

from dataclasses import replace
from typing import Any

from raydix.runtime.cache.host import events as host_events
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.simulation.checks import check_idle
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.grammars import expected_output
from tests.simulation.node import Node
from tests.simulation.workload import BASE_SETTINGS, STORAGE
from tests.simulation.world import World

PATIENT = PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE)
PAGES = [token % 7 for token in range(41)]
"""Ten full pages and a token."""


def cluster_with(
    faults: Faults | None = None,
    *,
    min_tokens: int = 4,
    prefetch: PrefetchSettings = PATIENT,
    l2_pages: int = 64,
    max_read_batches: int = 4,
    **changes: Any,
) -> Cluster:
    """`changes`: of the Scheduler's settings."""
    settings = replace(BASE_SETTINGS, num_lanes=1, prefetch=prefetch, **changes)
    storage = replace(STORAGE, min_tokens=min_tokens, max_read_batches=max_read_batches)
    world = World(3, faults or Faults())
    return Cluster(Node(world, settings, l2_pages=l2_pages, storage=storage))


def ask(
    cluster: Cluster, name: str, prompt: list[int], num_prompt_logprobs: int | None = None
) -> None:
    """Send a prompt."""
    message = SubmitRequest(
        asking=cluster.client("client").next_asking(),
        request_id=name,  # type: ignore[arg-type]
        token_ids=int32_array(prompt),
        sampling=DeviceSampling(seed=0, num_prompt_logprobs=num_prompt_logprobs),
        max_tokens=3,
    )
    cluster.submit(message)


def serve(
    cluster: Cluster, name: str, prompt: list[int], num_prompt_logprobs: int | None = None
) -> dict[str, int]:
    """Send a prompt, wait for the answer and what follows; returns the prompt's sources."""
    ask(cluster, name, prompt, num_prompt_logprobs)
    cluster.run(lambda: cluster.answers[name].ending is not None)  # type: ignore[index]
    answer = cluster.answers[name]  # type: ignore[index]
    assert answer.tokens == expected_output(prompt, 3)
    settle(cluster)
    return answer.sources or {}


def settle(cluster: Cluster) -> None:
    """Let a minute pass: nothing is left in flight or held, but for a probe of L3, which ends."""
    end_s = cluster.now_s + 60
    cluster.run(lambda: cluster.now_s > end_s, limit_s=float("inf"))
    host = cluster.node.host
    if host is not None:
        cluster.run(lambda: not host.stats()["pages_reading"], limit_s=end_s + 60)
    check_idle(cluster.node)


def flush(cluster: Cluster) -> None:
    """Empty L1 and L2."""
    cluster.to_core(events.FlushL1())
    cluster.node.to_host(host_events.FlushHost())
    settle(cluster)
