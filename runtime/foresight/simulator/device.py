"""The GPUs of one lane as far as their time goes: steps, loads and backups, by a profile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.profile import StepTimes, draw_factor
from raydix.runtime.foresight.simulator.world import World, tokens_of
from raydix.runtime.messages.arrays import Int32Array, frozen, int32_array
from raydix.runtime.messages.plan import PageCopies, StepPlan, StepResult, TransfersDone


@dataclass(frozen=True, slots=True)
class Copied:
    """A transfer that ends."""

    transfer_id: int
    host_page_ids: Int32Array
    generations: Int32Array
    num_bytes: int
    seconds: float
    is_load: bool


Done = StepResult | Copied


@dataclass(frozen=True, slots=True)
class Work:
    """What the rows of a plan have to do."""

    num_decodes: int
    context: int
    """The tokens that come before those that decode, of all such rows together."""
    num_prompt_tokens: int
    """The tokens of all other rows."""
    pairs: float
    """How many pairs of tokens attend to each other in those rows."""

    @classmethod
    def of(cls, plan: StepPlan) -> "Work":
        """Add up the rows of a plan that has some."""
        counts, starts = plan.row_num_tokens, plan.row_starts
        is_decode = (counts == 1) & (plan.row_output_positions > 0)
        num_decodes = int(np.count_nonzero(is_decode))
        # Nothing but decodes is in most plans.
        if num_decodes == len(counts):
            return cls(num_decodes, int(starts.sum()), 0, 0.0)

        context = int(starts[is_decode].sum())
        tokens = counts[~is_decode].astype(float)
        pairs = float((tokens * (starts[~is_decode] + tokens / 2)).sum())
        return cls(num_decodes, context, int(tokens.sum()), pairs)

    def seconds(self, times: StepTimes, tokens_per_simulated: int) -> float:
        """The mean device time of the rows; each decode stands for so many."""
        decode_s = times.decode_row_s * self.num_decodes + times.decode_context_s * self.context
        if not self.num_prompt_tokens:
            return tokens_per_simulated * (times.fixed_s + decode_s)

        prompt_s = times.prompt_token_s * self.num_prompt_tokens + times.prompt_pair_s * self.pairs
        if self.num_decodes:
            # What the other steps would have taken whose decodes this one stands for.
            decode_s = tokens_per_simulated * decode_s + (tokens_per_simulated - 1) * times.fixed_s
        return times.fixed_s + times.prompt_fixed_s + prompt_s + decode_s


@dataclass(frozen=True, slots=True)
class Load:
    """When a load begins and ends; its layers come one after the other."""

    began_s: float
    ended_s: float


def end_s(began_s: float, seconds: float, loads: Sequence[Load], num_layers: int) -> float:
    """When a step ends that begins at this time, or once the first layers that it awaits are there.

    Each layer of the step waits for its part of the loads: at best all but the last one are
    computed by the time that the loads end.
    """
    ends_s = [began_s + seconds]
    for load in loads:
        first_s = load.began_s + (load.ended_s - load.began_s) / num_layers
        ends_s += [first_s + seconds, load.ended_s + seconds / num_layers]
    return max(ends_s)


class LaneDevice:
    """Owns: when a lane's GPUs and both directions of their link are free, and its slots' seeds.

    All ranks of a lane do the same, so they take one time.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        loaded_bytes: tuple[int, ...],
        num_layers: int,
        vocab_size: int,
    ) -> None:
        """`rank`: the lane's first one, in whose name reports are made. `loaded_bytes`: what one
        rank copies of a page, by KV group.
        """
        self._world = world
        self._rank = rank
        self._page_bytes = np.array(loaded_bytes)
        self._num_layers = num_layers
        self._vocab_size = vocab_size
        self._seeds = np.zeros(64, dtype=np.int64)
        self._step_free_s = self._load_free_s = self._backup_free_s = 0.0
        self._loads: dict[int, Load] = {}

    @property
    def step_ends_s(self) -> float:
        """When all steps that were ordered have ended."""
        return self._step_free_s

    @property
    def free_s(self) -> float:
        """When all that was ordered is done."""
        return max(self._step_free_s, self._load_free_s, self._backup_free_s)

    def forget(self) -> None:
        """The link to the Scheduler has closed: its transfers mean nothing any more."""
        self._loads.clear()

    def carry_out(self, plan: StepPlan) -> Iterator[tuple[float, Done]]:
        """What is done of a plan that has come now, each with its time."""
        now_s, profile = self._world.now_s, self._world.profile
        for added in plan.added:
            self._set_seed(added.slot, added.sampling.seed)
        for copied in self._copies(plan.loads, is_load=True):
            load_began_s = max(now_s, self._load_free_s)
            self._load_free_s = load_began_s + copied.seconds
            self._loads[copied.transfer_id] = Load(load_began_s, self._load_free_s)
            yield self._load_free_s, copied
        # What is backed up was computed by steps that have been reported.
        for copied in self._copies(plan.backups, is_load=False):
            self._backup_free_s = max(now_s, self._backup_free_s) + copied.seconds
            yield self._backup_free_s, copied

        told_s = 0.0
        began_s = ended_s = max(now_s, self._step_free_s)
        if len(plan.row_slots):
            factor, work = draw_factor(profile.step.spread, self._world.random), Work.of(plan)
            seconds = factor * work.seconds(profile.step, self._world.rules.tokens_per_simulated)
            # The Scheduler learns by what one step takes, whatever this one stands for.
            told_s = factor * work.seconds(profile.step, 1)
            is_replayed = not work.num_prompt_tokens or bool((plan.row_num_tokens == 1).all())
            if not is_replayed:
                began_s = max(began_s, now_s + profile.step.launch_s)
            loads = self._awaited(plan)
            if loads and is_replayed:
                # It is replayed whole, so its layers cannot wait one by one.
                began_s = max([began_s, *(load.ended_s for load in loads)])
            ended_s = end_s(began_s, seconds, loads, self._num_layers)
        self._step_free_s = ended_s
        yield (
            ended_s,
            StepResult(
                rank=self._rank,
                step=plan.step,
                token_ids=self._sample(plan),
                compute_s=told_s,
            ),
        )

    def ended(self, copied: Copied, arena: SimulatedArena) -> TransfersDone:
        """The report of a transfer that ends now: a load is stale if its pages changed hands."""
        self._loads.pop(copied.transfer_id, None)
        ids = int32_array((copied.transfer_id,))
        if not copied.is_load:
            return TransfersDone(rank=self._rank, transfer_ids=ids)
        is_stale = arena.is_stale(copied.host_page_ids, copied.generations)
        return TransfersDone(
            rank=self._rank,
            transfer_ids=ids,
            stale_transfer_ids=int32_array((copied.transfer_id,) if is_stale else ()),
            num_bytes=copied.num_bytes,
            seconds=copied.seconds,
        )

    def _awaited(self, plan: StepPlan) -> list[Load]:
        """The loads that rows of a plan wait for, and that have not been reported."""
        if not self._loads:
            return []
        awaited = np.unique(plan.row_loads).tolist()
        return [self._loads[each] for each in awaited if each in self._loads]

    def _set_seed(self, slot: int, seed: int) -> None:
        if slot >= len(self._seeds):
            self._seeds = np.resize(self._seeds, 2 * slot)
        self._seeds[slot] = seed

    def _sample(self, plan: StepPlan) -> Int32Array:
        positions = plan.row_output_positions
        samples = positions >= 0
        seeds = self._seeds[plan.row_slots[samples]]
        return frozen(tokens_of(seeds, positions[samples], self._vocab_size))

    def _copies(self, copies: PageCopies, *, is_load: bool) -> Iterator[Copied]:
        if not len(copies):
            return
        profile = self._world.profile
        times = profile.load if is_load else profile.backup
        ids, places = np.unique(copies.transfer_ids, return_index=True)
        for transfer_id in ids[np.argsort(places)].tolist():
            mask = copies.transfer_ids == transfer_id
            num_bytes = int(self._page_bytes[copies.groups[mask]].sum())
            yield Copied(
                transfer_id,
                copies.host_page_ids[mask],
                copies.generations[mask],
                num_bytes,
                self._world.draw_copy_s(times, num_bytes),
                is_load,
            )
