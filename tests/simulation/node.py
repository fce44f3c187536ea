"""A node: its L2, HostMemory and storage, which one engine uses or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raydix.ids import SchedulerName
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry, plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.host_process import HostProcess
from tests.simulation.storage import PagePart, SimulatedStorage
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Node:
    """Owns: the arena's bytes, which outlive HostMemory, and the engines that share them."""

    def __init__(
        self,
        world: World,
        settings: SchedulerSettings,
        *,
        l2_pages: int,
        storage: StorageSettings | None,
        max_objects: int | None = None,
        l2_eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        """Start with nobody on it; engines of these settings are to come."""
        self.world = world
        self.name = f"node {len(world.nodes)}"
        self.settings = settings
        self.storage_settings = storage
        self.num_l2_pages = l2_pages
        self.l2_eviction = l2_eviction
        self._max_objects = max_objects
        self.engines: list[Cluster] = []
        self.arena_users: set[SchedulerName] = set()
        """Who may copy into the arena, as it says itself, whoever is HostMemory."""
        self.num_started = 0
        """How many engines have come, so that no two have one name."""
        layout = settings.layout
        page_bytes = [layout.host_page_bytes(group) for group in range(len(layout.groups))]
        # A few pages of each group may be less than one large page for each, which must fit.
        size_bytes = max(l2_pages * sum(page_bytes), len(page_bytes) * max(page_bytes))
        self.geometry: ArenaGeometry = plan_arena(layout, size_bytes)
        empty_page: PagePart = (None,) * settings.page_size
        self.arena = [
            [empty_page] * settings.ranks_per_lane for _ in range(self.geometry.num_host_pages)
        ]
        """What each host page holds, per rank of a lane."""
        self.generations = np.zeros(self.geometry.num_host_pages, dtype=np.int32)
        self.storage: SimulatedStorage | None = None
        self.host_memory: HostProcess | None = None
        world.nodes.append(self)

    @property
    def others(self) -> list[Node]:
        """The nodes that this one pulls from."""
        return [node for node in self.world.nodes if node is not self]

    def add(self, engine: Cluster) -> None:
        """An engine has come, whose Scheduler is up; the first one finds HostMemory started."""
        self.engines.append(engine)
        self.num_started += 1
        self.arena_users.add(engine.name)
        if self.num_started > 1:
            if self.host_memory is not None:
                self.host_memory.follow(engine)
            return
        self.storage = SimulatedStorage(self, self._max_objects) if self.storage_settings else None
        self.host_memory = HostProcess(self) if self.settings.has_host_memory else None
        if self.storage is not None:
            self.storage.dial()

    def forget(self, engine: Cluster) -> None:
        """An engine has ended for good, and all its processes have exited."""
        self.engines.remove(engine)
        self.arena_users.remove(engine.name)
        if self.host_memory is not None:
            # In order: what its links have brought before is heard before.
            self.host_memory.post(host_events.SchedulerEnded(engine.name))

    @property
    def host(self) -> HostMemoryCore | None:
        """HostMemory's core, while there is one."""
        return None if self.host_memory is None else self.host_memory.core

    def to_host(self, event: host_events.HostEvent) -> None:
        """HostMemory, if there is one, takes this event now, before what its links have brought."""
        if self.host_memory is not None:
            self.host_memory.take_now(event)
