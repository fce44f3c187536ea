"""Finding the HostMemories of a Ray cluster, which are named actors of it."""

import asyncio
from collections.abc import Collection

import ray
from ray.exceptions import RayError

from raydix.runtime.actors.pulls.pull_settings import PeerRecord
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind

_ANSWER_S = 5.0
"""Seconds for an actor to say where it is; one that does not is asked again later."""


class RayPeerFinder:
    """A `PeerFinder` for actors of the cluster. It is pickled into HostMemory."""

    def own_host(self) -> str:
        """The address by which Ray knows this node."""
        return str(ray.util.get_node_ip_address())

    async def find(self) -> Collection[PeerRecord]:
        """Ask all HostMemories where they can be pulled from. Raises OSError without a cluster."""
        names = await asyncio.to_thread(_host_memories)
        records = await asyncio.gather(*map(_ask, names))
        return [record for record in records if record is not None]


def _host_memories() -> list[str]:
    """The Ray names of all HostMemories that live. Raises OSError."""
    try:
        actors = ray.util.list_named_actors(all_namespaces=True)
    except RayError as error:
        raise OSError(f"Ray does not list its actors: {error}") from error
    return [
        actor["name"]
        for actor in actors
        if actor["namespace"] == NAMESPACE and actor["name"].endswith(f":{ActorKind.HOST_MEMORY}")
    ]


async def _ask(name: str) -> PeerRecord | None:
    """Where an actor can be pulled from; None if it is not, does not answer, or has ended."""
    try:
        handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        async with asyncio.timeout(_ANSWER_S):
            record: PeerRecord | None = await handle.peer_record.remote()
            return record
    except (RayError, ValueError, TimeoutError, AttributeError):
        # The last is what an engine of an earlier version gives, which cannot be pulled from.
        return None
