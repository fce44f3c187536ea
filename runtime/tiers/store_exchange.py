"""What the ranks of a lane tell each other before they start, through a store."""

import json
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from raydix.runtime.config.kv_shard import KvShard


def exchange(shard: KvShard, store: Store, what: str, own: Sequence[int]) -> list[list[int]]:
    """What each rank gives under this name, in their order; waits for all of them."""
    store.set(f"{what}{shard.rank}", json.dumps(own))
    return [json.loads(store.get(f"{what}{rank}")) for rank in range(shard.num_ranks)]
