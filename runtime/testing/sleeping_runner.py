"""A model that only sleeps, to measure everything around a model."""

import time
from dataclasses import dataclass

from raydix.runtime.actors.gpu_model import (
    GpuModel,
    HostTimer,
    LoadedGpuModel,
    LoadReport,
    RankPlace,
)
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.tiers.transfers import WaitLayer

VOCAB_SIZE = 32_000
MAX_POSITIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class SleepingOutput:
    """The tokens of a step that is done."""

    token_ids: Int32Array

    def to_result(self, rank: int, step: int, compute_s: float) -> StepResult:
        """The step's message."""
        return StepResult(rank=rank, step=step, token_ids=self.token_ids, compute_s=compute_s)


class SleepingRunner:
    """Takes `step_s` for any step with rows, and `token_s` for each token of a prompt.

    What token it answers with depends on slot and position alone.
    """

    def __init__(self, step_s: float, token_s: float = 0.0) -> None:
        self._step_s, self._token_s = step_s, token_s

    def apply(self, plan: StepPlan) -> None:
        """Keeps no state."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        """Sleep, then make tokens up."""
        duration_s = self._step_s
        if self._token_s > 0:
            lengths = plan.row_num_tokens
            duration_s += self._token_s * float(lengths[lengths > 1].sum())
        if duration_s > 0:
            time.sleep(duration_s)
        samples = plan.row_output_positions >= 0
        positions = plan.row_starts[samples] + plan.row_num_tokens[samples]
        return SleepingOutput(
            int32_array((plan.row_slots[samples] * 7919 + positions * 104_729) % VOCAB_SIZE)
        )


def build_sleeping_model(
    config: EngineConfig, place: RankPlace, *, step_s: float
) -> LoadedGpuModel:
    """A model without weights or KV, for an engine without L2, on no device."""
    num_pages = config.cache.l1.num_pages
    if num_pages is None:
        raise ValueError("a sleeping model needs cache.l1.num_pages")

    group = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8)
    report = LoadReport(
        fingerprint=bytes(32),
        layout=KvLayout(
            page_size=config.cache.page_size, dtype="float32", dtype_bytes=4, groups=(group,)
        ),
        num_pages=(num_pages,),
        max_position_embeddings=MAX_POSITIONS,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
    )

    model = GpuModel(
        runner=SleepingRunner(step_s),
        make_timer=HostTimer,
        make_transfers=None,
        enter_thread=lambda: None,
    )
    return LoadedGpuModel(report=report, prepare=lambda _num_pages: model)
