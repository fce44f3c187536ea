"""How ranks that wake meet anew in the processes in which they have met before."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore, ProcessGroup

from raydix.kernels.device.symmetric_group import name_group
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers import peer_pools
from tests.runtime.tiers.lane_of_tiers import LATENT


def test_each_meeting_on_gpus_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[ProcessGroup] = []

    def meet(
        shard: KvShard, _num_pages: object, _device: object, _store: object, name: str
    ) -> tuple[tuple[()], None]:
        # Torch refuses a name that it knows.
        groups.append(name_group(name, HashStore(), shard.rank, shard.num_ranks))
        return (), None

    fake = SimpleNamespace(meet_on_cuda=meet)
    monkeypatch.setitem(sys.modules, "raydix.runtime.tiers.cuda_meeting", fake)
    shard = KvShard(layout=LATENT, rank=0, num_ranks=2)
    for spell in range(3):
        file = tmp_path / f"group0-1-lane0-pools{spell}"
        peer_pools.make_peer_pools(shard, [4], torch.device("cuda"), file)
    assert len(groups) == 3
