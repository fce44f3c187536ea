"""HostMemories of one process that find each other, for tests."""

from collections.abc import Collection

from raydix.runtime.actors.host_memory import HostMemoryActor
from raydix.runtime.actors.pulls.pull_settings import PeerRecord


class InProcessPeers:
    """A `PeerFinder` that knows the HostMemories it was told of."""

    def __init__(self) -> None:
        self._actors: list[HostMemoryActor] = []

    def add(self, actor: HostMemoryActor) -> None:
        """Let others find this one; one that has ended is dialled in vain."""
        self._actors.append(actor)

    def own_host(self) -> str:
        """The loopback device."""
        return "127.0.0.1"

    async def find(self) -> Collection[PeerRecord]:
        """Tell where those are that listen by now."""
        records = (actor.peer_record() for actor in self._actors)
        return [record for record in records if record is not None]
