"""A node's arena without its bytes."""

import numpy as np

from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.messages.arrays import Int32Array, int32_array


class SimulatedArena:
    """Owns: the generation of each host page, which outlives HostMemory."""

    def __init__(self, geometry: ArenaGeometry) -> None:
        self.geometry = geometry
        self._generations = np.zeros(geometry.num_host_pages, dtype=np.int32)

    @property
    def generations(self) -> Int32Array:
        """The table as it is now, copied."""
        return int32_array(self._generations)

    def set_generations(self, host_page_ids: Int32Array, generations: Int32Array) -> None:
        """HostMemory gives pages to others."""
        self._generations[host_page_ids] = generations

    def is_stale(self, host_page_ids: Int32Array, generations: Int32Array) -> bool:
        """Whether one of these pages has changed hands since it had its generation."""
        return bool((self._generations[host_page_ids] != generations).any())
