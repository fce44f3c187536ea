"""A rank on a virtual clock that takes its time as one H200 did with dense_l16.

Times are fitted to the steps of `benchmarks.turns` through Ray, 2026-11-22 (see ADR 12), and moved
to where its record of 2aee990 has them.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.cores.scheduler_engine import sampled_tokens
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies, StepPlan, StepResult, TransfersDone

_LAYERS = 16
_SIZES = (
    *(32, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768),
    *(896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048),
)
"""Tokens of captured steps."""
_SIZES_MS = (
    *(2.0, 2.2, 2.6, 2.9, 3.2, 3.5, 3.8, 3.8, 3.8, 4.16, 4.2, 4.45, 4.45),
    *(4.5, 5.27, 6.87, 7.41, 7.51, 7.55, 8.05, 8.54, 9.17, 9.8),
)
"""What each takes but for attention; those below 384, 1664 and 1920 are a guess, for none were
seen."""
_DECODE_MS = 1.38
_DECODE_CONTEXT_MS = 0.15e-4
"""Per token that rows look back on."""
_MIXED_CONTEXT_MS = 0.125e-4
_PAIR_MS = 0.669e-6
"""Per token of a prompt and token that it looks back on."""
_ROW_MS = 0.437
"""The time of each prompt after the first."""
_LINK_S = 0.25e-3
_LOAD_BYTES_PER_S = 53e9
_LOAD_S = 0.15e-3
_BACKUP_BYTES_PER_S = 40e9
_HOST_S = {"decode": 0.35e-3, "captured": 2.2e-3, "eager": 15e-3}
"""The time to enqueue a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledStep:
    """One step that was carried out."""

    num_decodes: int
    num_prompt_tokens: int
    seconds: float


def _base_ms(num_tokens: int) -> float:
    place = bisect.bisect_left(_SIZES, num_tokens)
    return _SIZES_MS[place] if place < len(_SIZES) else 0.7 + 4.5e-3 * num_tokens


@dataclass
class ModelledDevice:
    """Owns: when the host, the device and both directions of its link are free.

    `saved_ms`: how much faster steps with prompts are than they were.
    """

    page_bytes: int
    saved_ms: float = 0.0
    steps: list[ModelledStep] = field(default_factory=list)
    _host_s: float = 0.0
    _device_s: float = 0.0
    _load_s: float = 0.0
    _backup_s: float = 0.0
    _loads: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When each load begins and ends."""

    def carry_out(
        self, plan: StepPlan, now_s: float
    ) -> Iterator[tuple[float, StepResult | TransfersDone]]:
        """Carry a plan out as a modelled device would. It is a `Carry`."""
        now_s += _LINK_S
        yield from self._copy(plan, now_s)
        if not len(plan.row_slots):
            yield max(now_s, self._host_s) + _LINK_S, StepResult(rank=0, step=plan.step)
            return

        seconds = self._step_s(plan)
        self._device_s = self._end_s(plan, seconds, now_s)
        result = StepResult(
            rank=0, step=plan.step, token_ids=sampled_tokens(plan), compute_s=seconds
        )
        yield self._device_s + _LINK_S, result

    def _copy(self, plan: StepPlan, now_s: float) -> Iterator[tuple[float, TransfersDone]]:
        """Loads run one after the other, and so do backups, which see what was computed."""
        for transfer_id, num_bytes in self._sizes(plan.loads):
            seconds = _LOAD_S + num_bytes / _LOAD_BYTES_PER_S
            began_s = max(now_s, self._load_s)
            self._load_s = began_s + seconds
            self._loads[transfer_id] = began_s, self._load_s
            done = TransfersDone(
                rank=0,
                transfer_ids=int32_array((transfer_id,)),
                num_bytes=num_bytes,
                seconds=seconds,
            )
            yield self._load_s + _LINK_S, done

        for transfer_id, num_bytes in self._sizes(plan.backups):
            began_s = max(now_s, self._backup_s, self._device_s)
            self._backup_s = began_s + num_bytes / _BACKUP_BYTES_PER_S
            done = TransfersDone(rank=0, transfer_ids=int32_array((transfer_id,)))
            yield self._backup_s + _LINK_S, done

    def _sizes(self, copies: PageCopies) -> list[tuple[int, int]]:
        ids = copies.transfer_ids.tolist()
        return [(each, ids.count(each) * self.page_bytes) for each in dict.fromkeys(ids)]

    def _step_s(self, plan: StepPlan) -> float:
        """What its rows take, without waits."""
        counts, starts = plan.row_num_tokens, plan.row_starts
        is_decode = counts == 1
        context = int(starts[is_decode].sum())
        prompts = counts[~is_decode].astype(float)
        if not len(prompts):
            seconds = 1e-3 * (_DECODE_MS + _DECODE_CONTEXT_MS * context)
        else:
            pairs = float((prompts * (starts[~is_decode] + prompts / 2)).sum())
            of_rows_ms = _ROW_MS * (len(prompts) - 1) + _MIXED_CONTEXT_MS * context
            base_ms = _base_ms(int(counts.sum())) - self.saved_ms
            seconds = 1e-3 * (base_ms + of_rows_ms + _PAIR_MS * pairs)

        step = ModelledStep(
            num_decodes=int(is_decode.sum()),
            num_prompt_tokens=int(prompts.sum()),
            seconds=seconds,
        )
        self.steps.append(step)
        return seconds

    def _end_s(self, plan: StepPlan, seconds: float, now_s: float) -> float:
        """When the step ends: layer by layer it waits for the host and its loads."""
        step = self.steps[-1]
        num_tokens = step.num_decodes + step.num_prompt_tokens
        kind = "eager" if num_tokens > _SIZES[-1] else "captured"
        host_s = _HOST_S[kind if step.num_prompt_tokens else "decode"]
        began_s = max(now_s, self._host_s)
        self._host_s = began_s + host_s

        end_s = self._device_s
        for layer in range(1, _LAYERS + 1):
            part = layer / _LAYERS
            end_s = max(end_s, began_s + part * host_s)
            for load in {int(each) for each in plan.row_loads if each >= 0}:
                load_began_s, load_ended_s = self._loads[load]
                end_s = max(end_s, load_began_s + part * (load_ended_s - load_began_s))
            end_s += seconds / _LAYERS
        return end_s
