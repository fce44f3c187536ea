"""State of each request on the device, one row per slot: tokens, block tables, sampling."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.errors import AccountingError
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import AddedRequest, StepPlan, TableChanges
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.slots.slot_memory import Runs, SlotMemory
from raydix.runtime.model.slots.slot_sampling import SlotSampling
from raydix.runtime.model.staging.pinned_copies import PinnedCopies


class RequestSlots:
    """Owns: each slot's tokens, block tables and sampling parameters.

    `tokens_XL`: int32 [max_slots + 1, max_model_len + 1], prompt then output; sampled tokens are
    written by the step that samples them. `tables_XN`: one int32 [max_slots + 1, pages of
    max_model_len] per KV group; what is not set is the padding page, so that a row beyond its
    request's pages is harmless. No request is ever in the last slot.
    """

    def __init__(
        self,
        *,
        pool_pages: Sequence[int],
        page_size: int,
        max_slots: int,
        max_model_len: int,
        device: torch.device,
        rules: LogitRules = LOGIT_RULES,
    ) -> None:
        """`pool_pages`: usable pages of each KV group's pool."""
        self.copies = PinnedCopies(device)
        self.max_slots = max_slots
        self.max_model_len = max_model_len
        self.page_size = page_size
        self.max_pages = -(-max_model_len // page_size)
        """Entries of a slot's block table."""
        self.tokens_per_slot = max_model_len + 1
        self.scratch_slot = max_slots
        """The slot of rows of padding: its block tables name the padding page alone."""

        self._memory = SlotMemory(
            max_slots + 1,
            num_tokens=self.tokens_per_slot,
            num_pages=self.max_pages,
            num_groups=len(pool_pages),
            device=device,
        )
        self.tokens_XL = self._memory.tokens_XL
        self.tables_XN = self._memory.tables_XN
        self._pool_pages = tuple(pool_pages)
        self._num_told = np.zeros((len(pool_pages), max_slots), dtype=np.int64)
        """The number of entries of each block table that may name pages; all others are padding."""
        self.sampling = SlotSampling(max_slots + 1, rules)
        self.num_prompt_tokens = np.zeros(max_slots + 1, dtype=np.int64)
        # Padding counts as a prompt, which warm-up may score.
        self.num_prompt_tokens[self.scratch_slot] = self.tokens_per_slot
        self.num_scored_tokens = np.zeros(max_slots + 1, dtype=np.int64)
        """Prompt tokens that need not be scored."""
        self.is_taken = np.zeros(max_slots, dtype=np.bool_)

    def vary_padding(self, vocab_size: int) -> None:
        """Give padding the tokens 0, 1, 2 and so on, whose experts differ as those of text do."""
        self.tokens_XL[self.scratch_slot] = (
            torch.arange(self.tokens_per_slot, device=self.tokens_XL.device) % vocab_size
        )

    def apply(self, plan: StepPlan) -> None:
        """Carry out a plan's removals, additions and block-table changes.

        Raises AccountingError if one is impossible; one of the block tables, before anything has
        changed.
        """
        for changes in plan.tables:
            self._check_tables(changes)
        if len(plan.removed_slots):
            self._remove(plan.removed_slots)
        for request in plan.added:
            self._add(request)
        if plan.added or plan.tables:
            self._memory.write(self._writes(plan))

    def _remove(self, slots: NDArray[np.int32]) -> None:
        if not self.is_taken[slots].all():
            raise AccountingError(
                f"Slots {slots[~self.is_taken[slots]].tolist()} are removed but not taken."
            )
        self.is_taken[slots] = False

    def _add(self, request: AddedRequest) -> None:
        slot, num_tokens = request.slot, len(request.token_ids)
        if not 0 <= slot < self.max_slots or self.is_taken[slot]:
            raise AccountingError(
                f"{request.request_id} is added to slot {slot} of {self.max_slots}, which is not "
                f"free."
            )
        if num_tokens > self.max_model_len:
            raise AccountingError(
                f"{request.request_id} has {num_tokens} tokens; max_model_len is "
                f"{self.max_model_len}."
            )

        self.is_taken[slot] = True
        self.sampling.put(slot, request.sampling)
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        self.num_scored_tokens[slot] = request.num_scored_tokens

    def _writes(self, plan: StepPlan) -> list[Runs]:
        """What changes on the device, no place twice.

        The table of a request that comes is one run: its pages, and padding over those that the
        request before it had behind them.
        """
        memory = self._memory
        if not plan.added:
            return [self._grow(changes) for changes in plan.tables]
        begun = self._begin_tables(plan)
        is_coming = np.zeros(self.max_slots, dtype=np.bool_)
        is_coming[[each.slot for each in plan.added]] = True
        runs = [Runs.one(memory.tokens_place(each.slot), each.token_ids) for each in plan.added]
        runs += [Runs.one(memory.table_place(*place), table) for place, table in begun.items()]

        for changes in plan.tables:
            slots, counts = changes.slots, changes.counts.astype(np.int64)
            places = memory.table_places(changes.group, slots) + changes.starts
            is_begun = is_coming[slots]
            if not is_begun.any():
                runs.append(Runs(places, counts, changes.page_ids))
                continue

            stops = np.cumsum(counts)
            for index in np.flatnonzero(is_begun).tolist():
                start, count, stop = int(changes.starts[index]), counts[index], stops[index]
                table = begun[changes.group, int(slots[index])]
                table[start : start + count] = changes.page_ids[stop - count : stop]
            others = ~is_begun
            page_ids = changes.page_ids[np.repeat(others, counts)]
            runs.append(Runs(places[others], counts[others], page_ids))
        return runs

    def _grow(self, changes: TableChanges) -> Runs:
        """What changes of tables of requests that are there: runs of their own."""
        counts = changes.counts.astype(np.int64)
        ends = changes.starts + counts
        np.maximum.at(self._num_told[changes.group], changes.slots, ends)
        places = self._memory.table_places(changes.group, changes.slots) + changes.starts
        return Runs(places, counts, changes.page_ids)

    def _begin_tables(self, plan: StepPlan) -> dict[tuple[int, int], Int32Array]:
        """Make a table of padding for each request that comes, by KV group and slot.

        As long as what it, or the request before it, is told.
        """
        coming = [each.slot for each in plan.added]
        former = self._num_told[:, coming]
        self._num_told[:, coming] = 0
        for changes in plan.tables:
            ends = changes.starts.astype(np.int64) + changes.counts
            np.maximum.at(self._num_told[changes.group], changes.slots, ends)

        lengths = np.maximum(former, self._num_told[:, coming]).tolist()
        return {
            (group, slot): np.zeros(length, dtype=np.int32)
            for group, of_group in enumerate(lengths)
            for slot, length in zip(coming, of_group, strict=True)
        }

    def keep_sampled(self, next_index_R: Tensor, token_ids_R: Tensor) -> None:
        """Write sampled tokens (int32) behind their requests' tokens.

        `next_index_R`: int64, where in `tokens_XL`, seen as one dimension.
        """
        # Before the host knows that there is no token, a step may run on top of it.
        self.tokens_XL.view(-1).scatter_(0, next_index_R, token_ids_R.clamp_min(0))

    def _check_tables(self, changes: TableChanges) -> None:
        """Raise AccountingError if a run does not fit its table, or names a page outside the pool.

        Kernels do not look: a page that is not there is memory of something else.
        """
        starts, counts = changes.starts.astype(np.int64), changes.counts.astype(np.int64)
        if not 0 <= changes.group < len(self.tables_XN):
            raise AccountingError(
                f"Block tables of KV group {changes.group} change; there are {len(self.tables_XN)}."
            )

        fits = (starts >= 0) & (counts >= 0) & (starts + counts <= self.max_pages)
        if counts.sum() != len(changes.page_ids) or not fits.all():
            raise AccountingError(
                f"Block-table runs {list(zip(starts.tolist(), counts.tolist(), strict=True))} do "
                f"not fit {len(changes.page_ids)} page ids or tables of {self.max_pages} pages."
            )
        if not ((changes.slots >= 0) & (changes.slots < self.max_slots)).all():
            raise AccountingError(
                f"Block tables of slots {changes.slots.tolist()} change; there are "
                f"{self.max_slots}."
            )

        num_pages = self._pool_pages[changes.group]
        if not ((changes.page_ids >= 0) & (changes.page_ids <= num_pages)).all():
            raise AccountingError(
                f"Block tables name pages {changes.page_ids.min()} to {changes.page_ids.max()} of "
                f"KV group {changes.group}; its pool has {num_pages} beside the padding page."
            )
