"""A model that sleeps over real pages: everything around it is real, copies too."""

import torch

from raydix.runtime.actors.gpu_model import (
    GpuModel,
    HostTimer,
    LoadedGpuModel,
    LoadReport,
    RankPlace,
)
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.testing.sleeping_runner import MAX_POSITIONS, VOCAB_SIZE, SleepingRunner
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferEngine

PAGE_TOKENS = 64


def build_model(
    config: EngineConfig,
    place: RankPlace,
    *,
    layout: KvLayout,
    step_s: float,
    token_s: float = 0.0,
    page_copy_s: float = 0.0,
) -> LoadedGpuModel:
    """A model whose steps take `step_s`, and `token_s` for each token of a prompt.

    A copy of a page takes `page_copy_s` on average.
    """
    room = config.cache.l1.num_pages
    assert room is not None
    report = LoadReport(
        fingerprint=bytes(32),
        layout=layout,
        num_pages=(room,) * len(layout.groups),
        max_position_embeddings=MAX_POSITIONS,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
    )

    def prepare(num_pages: tuple[int, ...]) -> GpuModel:
        tp = config.parallel.tp
        shard = KvShard(layout=layout, rank=place.rank % tp, num_ranks=tp)
        pools = make_pools(shard, num_pages, torch.device("cpu"))

        def make_transfers(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
            return CpuTransfers(
                shard,
                pools,
                arena,
                on_done=on_done,
                on_error=on_error,
                copy_delay_s=2 * page_copy_s,
            )

        return GpuModel(
            runner=SleepingRunner(step_s, token_s),
            make_timer=HostTimer,
            make_transfers=make_transfers,
            enter_thread=lambda: None,
        )

    return LoadedGpuModel(report=report, prepare=prepare)
