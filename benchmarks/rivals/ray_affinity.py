"""Ray Serve's PrefixCacheAffinityRouter, its own code, over nodes of a virtual clock.

Its prefix tree is called in this process instead of in an actor. Prompts are texts of one character
a block. Lengths of queues are exact, as if they were asked for at each request.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from benchmarks.cores.routed_nodes import KeyNews, RoutedNode
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import TraceRequest

_FIRST_CHARACTER = 0xE000
"""Above the surrogates, which are no characters."""


class RayAffinity:
    """Owns: a router of Ray's, and the tree that it asks."""

    def __init__(self) -> None:
        # Imported here, as Ray is heavy and nothing else in this benchmark needs it.
        from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree
        from ray.serve._private.common import DeploymentID, ReplicaID

        self._module = prefix_aware_router
        self._tree = PrefixTree()
        self._deployment = DeploymentID(name="nodes")
        self._new_id = ReplicaID
        self._router = object.__new__(prefix_aware_router.PrefixCacheAffinityRouter)
        self._router.initialize_state(tree_actor=_Actor(self._tree))
        self._nodes: Sequence[RoutedNode] = ()
        self._clock = Clock()
        self._replicas: list[Any] = []
        self._queue_lengths: dict[int, int] = {}
        self._sent: dict[int, int] = {}

    def begin(self, nodes: Sequence[RoutedNode], clock: Clock, *, until_s: float) -> None:
        """The tree has a tenant per node."""
        self._clock, self._nodes = clock, nodes
        ids = [self._new_id(f"n{index}", self._deployment) for index in range(len(nodes))]
        self._replicas = [
            SimpleNamespace(replica_id=each, max_ongoing_requests=1e9) for each in ids
        ]
        self._queue_lengths = dict.fromkeys(range(len(nodes)), 0)
        router = cast(Any, self._router)
        router._replicas = {each.replica_id: each for each in self._replicas}
        router._use_replica_queue_len_cache = True
        router._replica_queue_len_cache = {}
        self._tree.add_tenants([each.to_full_id_str() for each in ids], clock.now_s)

    def choose(self, number: int, request: TraceRequest) -> int:
        """The node with the fewest requests of those that the router names."""
        ids = [each.replica_id for each in self._replicas]
        router = cast(Any, self._router)
        router._replica_queue_len_cache = {
            each: self._queue_lengths[index] for index, each in enumerate(ids)
        }
        text = _text(request)
        pending = SimpleNamespace(args=[SimpleNamespace(prompt=text)])
        with mock.patch.object(self._module, "ray", SimpleNamespace(get=lambda value: value)):
            ranks = asyncio.run(router._prefix_match_best_replicas(pending, self._replicas))
        named = [self._replicas.index(each) for each in ranks[0]]
        # Without a name it takes any; there is one as soon as there are tenants.
        chosen = min(named or self._queue_lengths, key=self._queue_lengths.__getitem__)

        self._tree.insert(text, ids[chosen].to_full_id_str(), self._clock.now_s)
        self._queue_lengths[chosen] += 1
        self._sent[number] = chosen
        return chosen

    def note_first_token(self, number: int) -> None:
        """Nothing to it."""

    def note_end(self, number: int) -> None:
        """A replica's queue has what it has not answered."""
        self._queue_lengths[self._sent.pop(number)] -= 1

    def note_keys(self, news: KeyNews) -> None:
        """It follows no events."""


class _Actor:
    """A tree behind the calls of an actor."""

    def __init__(self, tree: Any) -> None:
        self.prefix_match = SimpleNamespace(remote=tree.prefix_match)
        self.get_smallest_tenants = SimpleNamespace(remote=tree.get_smallest_tenants)


def _text(request: TraceRequest) -> str:
    blocks = list(request.blocks)
    if request.partial_block is not None:
        blocks.append(request.partial_block)
    return "".join(chr(_FIRST_CHARACTER + block) for block in blocks)
