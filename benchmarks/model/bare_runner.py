"""The model runner without an engine: prompts in its slots, and rows of them to compute."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raydix.ids import RequestId, Slot
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.tiers.gpu_pool import make_pools


class BareRunner:
    """Owns: a runner whose slots hold prompts, each in random pages of its own."""

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Tensor,
        page_size: int,
        codec: Codec = Codec.NONE,
        kv_dtype: str | None = None,
    ) -> None:
        """`prompts`: token ids [prompts, tokens] on the model's device.

        `kv_dtype`: of cached keys and values; None: the model's.
        """
        num_prompts, num_tokens = prompts.shape
        pages_each = -(-num_tokens // page_size)
        dtype = kv_dtype or str(loaded.decoder.dtype).removeprefix("torch.")
        self.shard = KvShard(layout=loaded.kv_layout(page_size, dtype, codec))
        self.pools = make_pools(self.shard, [num_prompts * pages_each], prompts.device)
        self._decoder = loaded.decoder
        self._runner = ModelRunner(
            loaded.decoder,
            self.pools,
            page_size=page_size,
            max_slots=num_prompts,
            max_model_len=num_tokens,
            device=prompts.device,
        )
        self._num_steps = 0

        page_ids = np.random.default_rng(0).permutation(num_prompts * pages_each) + 1
        self.page_ids: NDArray[np.int64] = page_ids.reshape(num_prompts, pages_each)
        """The pages of each slot, in the order of the tokens."""
        self._runner.apply(add_requests(prompts.cpu().numpy(), self.page_ids))

    def compute(self, slot: int, start: int, num_tokens: int) -> None:
        """Compute tokens of one prompt in a step of their own."""
        self._num_steps += 1
        plan = plan_rows(self._num_steps, [slot], start, num_tokens)
        self._runner.execute(plan, lambda load, layer: None)

    @contextmanager
    def recorded_logits(self) -> Iterator[list[Tensor]]:
        """float32 logits [tokens, V] of each step in the `with` block."""
        recorded: list[Tensor] = []

        def record(module: Any, inputs: Any, batches: list[Tensor]) -> None:
            [hidden] = batches
            recorded.append(self._decoder.logits(hidden).float())

        hook = self._decoder.register_forward_hook(record)
        try:
            yield recorded
        finally:
            hook.remove()


def add_requests(prompts: NDArray[Any], page_ids: NDArray[Any]) -> StepPlan:
    """Greedy requests for prompts [requests, tokens] with pages [requests, pages]; no row."""
    slots = range(len(prompts))
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(prompts[slot]),
            num_prompt_tokens=len(prompts[slot]),
            sampling=DeviceSampling(seed=slot),
        )
        for slot in slots
    )

    num_requests, pages_each = page_ids.shape
    tables = TableChanges(
        slots=int32_array(slots),
        starts=int32_array([0] * num_requests),
        counts=int32_array([pages_each] * num_requests),
        page_ids=int32_array(page_ids.reshape(-1)),
    )
    return StepPlan(step=0, added=added, tables=(tables,))


def plan_rows(
    step: int,
    slots: Sequence[int],
    start: int,
    num_tokens: int,
    output_position: int | None = None,
) -> StepPlan:
    """A step of equal rows. Without an output position they sample nothing."""
    count = len(slots)
    position = -1 if output_position is None else output_position

    return StepPlan(
        step=step,
        row_slots=int32_array(slots),
        row_starts=int32_array([start] * count),
        row_num_tokens=int32_array([num_tokens] * count),
        row_write_starts=int32_array([start] * count),
        row_output_positions=int32_array([position] * count),
        row_loads=int32_array([-1] * count),
    )
