"""Drives a ModelRunner with hand-made plans, as a scheduler that never sees a token would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from raydix.ids import RequestId, Slot
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.tiers.gpu_pool import make_pools

CPU = torch.device("cpu")
GREEDY = DeviceSampling(seed=0)


@dataclass(kw_only=True)
class DrivenRequest:
    """A request in a slot; `position` is the next token to compute, `pages` its block table."""

    slot: int
    num_tokens: int
    num_prompt_tokens: int
    position: int
    pages: list[int]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a step. `write_start` defaults to the request's position."""

    request: DrivenRequest
    num_tokens: int
    write_start: int | None = None
    load: int = -1


class PlanDriver:
    """One runner, whose page ids are handed out in random order.

    A request has the same number of pages in every KV group; those of later groups are numbered
    from the other end of the pool.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        page_size: int = 8,
        num_pages: int = 120,
        max_slots: int = 40,
        rules: LogitRules = LOGIT_RULES,
        device: torch.device = CPU,
    ) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        dtype = str(model.decoder.dtype).removeprefix("torch.")
        layout = model.kv_layout(page_size, dtype)
        ranks = model.decoder.collectives
        shard = KvShard(layout=layout, rank=ranks.rank, num_ranks=ranks.size)
        self.pools = make_pools(shard, [num_pages] * len(layout.groups), device)

        self.runner = ModelRunner(
            model.decoder,
            self.pools,
            page_size=page_size,
            max_slots=max_slots,
            max_model_len=256,
            device=device,
            rules=rules,
        )

        self.free_pages = [
            int(page) for page in np.random.default_rng(7).permutation(num_pages) + 1
        ]
        self.logits: list[torch.Tensor] = []
        self._step = 0

    @property
    def pool(self) -> torch.Tensor:
        """The pool of the only KV group."""
        (pool,) = self.pools
        return pool

    def record_logits(self) -> None:
        """Keep the logits of every later step in `logits`."""
        decoder = self.runner._decoder
        compute = type(decoder).logits

        def logits(hidden: torch.Tensor) -> torch.Tensor:
            self.logits.append(compute(decoder, hidden))
            return self.logits[-1]

        decoder.logits = logits

    def add(
        self,
        slot: int,
        token_ids: Sequence[int],
        *,
        sampling: DeviceSampling = GREEDY,
        num_prompt_tokens: int | None = None,
        shared_pages: Sequence[int] = (),
        num_cached: int = 0,
        num_scored: int = 0,
    ) -> DrivenRequest:
        """Put a request into `slot` with enough pages for 128 more tokens."""
        num_pages = -(-(len(token_ids) + 128) // self.page_size) - len(shared_pages)
        pages = list(shared_pages) + [self.free_pages.pop() for _ in range(num_pages)]

        added = AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(f"request-{slot}"),
            token_ids=int32_array(token_ids),
            num_prompt_tokens=num_prompt_tokens or len(token_ids),
            sampling=sampling,
            num_scored_tokens=num_scored,
        )

        tables = tuple(
            TableChanges(
                group=group,
                slots=int32_array([slot]),
                starts=int32_array([0]),
                counts=int32_array([len(pages)]),
                page_ids=int32_array(self.page_ids(group, pages)),
            )
            for group in range(len(self.pools))
        )

        self.runner.apply(StepPlan(step=self._step, added=(added,), tables=tables))
        return DrivenRequest(
            slot=slot,
            num_tokens=len(token_ids),
            num_prompt_tokens=added.num_prompt_tokens,
            position=num_cached,
            pages=pages,
        )

    def page_ids(self, group: int, pages: Sequence[int]) -> list[int]:
        """What a group calls the pages of a request."""
        return [self.num_pages + 1 - page if group else page for page in pages]

    def remove(self, request: DrivenRequest) -> None:
        """Free the slot; the pages are not reused."""
        self.runner.apply(StepPlan(step=self._step, removed_slots=int32_array([request.slot])))

    def step(
        self, rows: Sequence[Row], wait_layer: Callable[[int, int], None] = lambda load, layer: None
    ) -> StepOutput:
        """Run one step and advance the requests.

        A row samples if it reaches the end of its known tokens.
        """
        ends = [row.request.position + row.num_tokens for row in rows]
        samples = [end >= row.request.num_tokens for row, end in zip(rows, ends, strict=True)]

        plan = StepPlan(
            step=self._step,
            row_slots=int32_array(row.request.slot for row in rows),
            row_starts=int32_array(row.request.position for row in rows),
            row_num_tokens=int32_array(row.num_tokens for row in rows),
            row_write_starts=int32_array(
                row.request.position if row.write_start is None else row.write_start for row in rows
            ),
            row_output_positions=int32_array(
                end - row.request.num_prompt_tokens if is_sampled else -1
                for row, end, is_sampled in zip(rows, ends, samples, strict=True)
            ),
            row_loads=int32_array(row.load for row in rows),
        )

        self._step += 1
        self.runner.apply(plan)
        output = self.runner.execute(plan, wait_layer)
        for row, end, is_sampled in zip(rows, ends, samples, strict=True):
            row.request.position = end
            row.request.num_tokens += int(is_sampled)
        return output

    def generate(
        self, requests: Sequence[DrivenRequest], num_tokens: int, chunk: int = 10**6
    ) -> list[list[int]]:
        """Prefill in chunks, then decode, all requests in each step.

        Tokens are read only after the last step.
        """
        outputs: list[tuple[list[int], StepOutput]] = []
        targets = [request.num_tokens + num_tokens for request in requests]
        while True:
            rows = [
                Row(request=request, num_tokens=min(chunk, request.num_tokens - request.position))
                for request, target in zip(requests, targets, strict=True)
                if request.num_tokens < target
            ]
            if not rows:
                break

            before = [row.request.num_tokens for row in rows]
            output = self.step(rows)
            sampled = [
                row.request.slot
                for row, count in zip(rows, before, strict=True)
                if row.request.num_tokens > count
            ]
            outputs.append((sampled, output))

        tokens: dict[int, list[int]] = {request.slot: [] for request in requests}
        for step, (slots, output) in enumerate(outputs):
            for slot, token_id in zip(slots, tokens_of(output, step), strict=True):
                tokens[slot].append(token_id)
        return [tokens[request.slot] for request in requests]


def tokens_of(output: StepOutput, step: int = 0) -> list[int]:
    """The step's sampled tokens as a list."""
    return output.to_result(rank=0, step=step, compute_s=0.0).token_ids.tolist()
