"""How many of a trace's blocks so many bytes hold, of a model: states and windows included."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.pool_sizes import largest_pools
from raydix.runtime.foresight.plan.limits import Chain
from raydix.runtime.foresight.plan.planning import TierSize


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """A model of which only the bytes per token are known."""

    token_bytes: int
    block_tokens: int

    def l1(self, num_bytes: int) -> TierSize:
        """What so many bytes of L1 hold."""
        num_blocks = num_bytes // (self.token_bytes * self.block_tokens)
        return TierSize(num_bytes=num_bytes, num_blocks=num_blocks)

    def l2(self, num_bytes: int) -> TierSize:
        """What so many bytes of L2, or L3, hold."""
        return self.l1(num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """A model as the configuration lays out its pages."""

    config: EngineConfig
    layout: KvLayout
    block_tokens: int
    new_blocks: float
    """Blocks that a request adds, on average: where they end it leaves windows and states behind.
    """

    def l1(self, num_bytes: int) -> TierSize:
        """What so many bytes of L1 hold: pools of all groups, as an engine makes them."""
        shard = KvShard(layout=self.layout)
        page_bytes = [shard.page_bytes(group) for group in range(len(self.layout.groups))]
        num_pages = largest_pools(self.config, self.layout, page_bytes, num_bytes)
        num_blocks = num_pages * self.layout.page_size // self.block_tokens
        return TierSize(num_bytes=num_bytes, num_blocks=num_blocks)

    def l2(self, num_bytes: int) -> TierSize:
        """What so many bytes of L2, or L3, hold."""
        return TierSize(num_bytes=num_bytes, num_blocks=int(num_bytes / self.host_block_bytes))

    @property
    def host_block_bytes(self) -> float:
        """Bytes of L2 for a block, with its share of the windows and states of its request."""
        layout, page_tokens = self.layout, self.layout.page_size
        pages_per_block = self.block_tokens / page_tokens
        new_pages = self.new_blocks * pages_per_block
        distance = checkpoint_distance(layout)
        total = 0.0
        for group, reach in enumerate(layout.reaches):
            size = layout.host_page_bytes(group)
            if reach is None:
                num_pages = new_pages
            elif layout.groups[group].kind is GroupKind.STATE:
                # One where the request ends, others at regular distances.
                num_pages = 1 + (0 if distance is None else new_pages / distance)
            else:
                num_pages = min(float(reach), new_pages)
            total += num_pages * size
        return total / self.new_blocks


def mean_new_blocks(chains: Sequence[Chain]) -> float:
    """How many blocks a request adds to a cache without bounds, on average, of those that do."""
    seen: set[int] = set()
    added = []
    for chain in chains:
        added.append(sum(block not in seen for block in chain))
        seen.update(chain)
    some = [each for each in added if each]
    return sum(some) / len(some) if some else 1.0
