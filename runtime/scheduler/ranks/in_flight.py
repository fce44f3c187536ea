"""What a lane's ranks were sent and have not all acknowledged: plans, loads and backups."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import TransferId
from raydix.runtime.messages.plan import StepResult, StepsLeftOut
from raydix.runtime.scheduler.ranks.column_ids import next_id
from raydix.runtime.scheduler.ranks.decode_rows import DecodeRows
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Backup, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One row of a plan in flight that does not belong to the decode batch."""

    request: RequestState
    run: int
    num_computed: int
    output_position: int | None
    """The position of the output token that the row samples; None if it samples none."""


@dataclass(slots=True, kw_only=True)
class StepInFlight:
    """A plan that was sent and not yet acknowledged by all ranks."""

    step: int
    decodes: DecodeRows | None
    """The rows of the decode batch, which come first in the plan."""
    rows: list[PlannedRow]
    num_tokens: int
    """The number of tokens of all rows of this lane."""
    most_tokens: int
    """The number of tokens of the lane of the step group that has the most."""
    is_padding: bool
    """Whether the lane has nothing to do, and steps because another one of its step group has."""
    started_s: float
    """The time at which the step was sent or, if later, at which the step before it or a load that
    it waits for ended.
    """
    waiting_ranks: set[int]
    loads: set[TransferId]
    """Loads under way for which rows of the step wait."""
    repetition: int
    """Which repetition of its plan the step is, counted from 1, made by ranks themselves; 0: none.
    """
    num_repeats: int
    """The number of the plan's repetitions."""
    result: StepResult | None = None
    """What the lane's first rank answered; None until it has."""

    @property
    def num_decodes(self) -> int:
        """Rows of the decode batch."""
        return 0 if self.decodes is None else len(self.decodes.slots)

    @property
    def num_rows(self) -> int:
        """The number of rows, in the decode batch and outside it."""
        return self.num_decodes + len(self.rows)

    def repeated(self, number: int) -> "StepInFlight":
        """The repetition of this number of the plan whose own step this is."""
        assert self.decodes is not None, "nothing else is repeated"
        decodes = self.decodes.repetition(number)
        num_rows = len(decodes.slots)
        return StepInFlight(
            step=self.step + number,
            decodes=decodes,
            rows=[],
            num_tokens=num_rows,
            most_tokens=num_rows,
            is_padding=False,
            started_s=self.started_s,
            waiting_ranks=set(self.waiting_ranks),
            loads=set(),
            repetition=number,
            num_repeats=self.num_repeats,
        )

    def end_load(self, transfer_id: TransferId, now_s: float) -> None:
        """Note that a load has ended, for which rows of this step may have waited."""
        if transfer_id in self.loads:
            self.loads.discard(transfer_id)
            self.started_s = now_s


class InFlight:
    """Owns: the plans and page copies of one lane that are under way, and the ids of its copies."""

    def __init__(self, ranks: range) -> None:
        self._ranks = ranks
        self.steps: dict[int, StepInFlight] = {}
        """Plans that were sent and not acknowledged, by step number, oldest first."""
        self.num_row_plans = 0
        """The number of plans in flight in which some lane of the step group has rows: it is asked
        for at each event.
        """
        self.ready_loads: list[Load] = []
        """Leased loads, which the plans send or give back that follow what brought the leases."""
        self.transfers: dict[TransferId, Load | Backup] = {}
        """Loads and backups that were sent and not acknowledged, oldest first."""
        self._ids = itertools.count(1)

    @property
    def is_empty(self) -> bool:
        """Whether the ranks owe no answer."""
        return not self.steps and not self.transfers

    @property
    def has_own_work(self) -> bool:
        """Whether the ranks owe an answer about rows or copies of this lane."""
        return bool(self.transfers) or not all(step.is_padding for step in self.steps.values())

    @property
    def num_standing(self) -> int:
        """The number of steps left of the plan that was sent last, if ranks repeat it; else 0."""
        newest = next(reversed(self.steps.values()), None)
        if newest is None or not newest.num_repeats:
            return 0
        oldest = next(iter(self.steps.values()))
        return min(newest.num_repeats, newest.step - oldest.step) + 1

    @property
    def oldest_step(self) -> StepInFlight | None:
        """The step that the ranks work on."""
        return next(iter(self.steps.values()), None)

    @property
    def oldest_transfer(self) -> Load | Backup | None:
        """The copy that was sent first."""
        return next(iter(self.transfers.values()), None)

    def loads(self) -> Iterator[Load]:
        """The loads under way, oldest first."""
        return (each for each in self.transfers.values() if isinstance(each, Load))

    def new_transfer_id(self) -> TransferId:
        """An id for a load or backup."""
        # Leased loads have their ids already, though no rank was told of them.
        ready = {load.transfer_id for load in self.ready_loads}
        return TransferId(next_id(self._ids, {*self.transfers, *ready}))

    def add_load(self, load: Load) -> None:
        """Keep a load that is leased, to be sent with the next plans."""
        self.ready_loads.append(load)

    def take_ready_loads(self) -> list[Load]:
        """The leased loads, which are sent now or not at all."""
        ready, self.ready_loads = self.ready_loads, []
        return ready

    def send_step(self, flight: StepInFlight) -> None:
        """Note that a plan goes to every rank, which may repeat it."""
        self.steps[flight.step] = flight
        self.num_row_plans += flight.most_tokens > 0
        for number in range(1, flight.num_repeats + 1):
            self.steps[flight.step + number] = flight.repeated(number)

    def send_transfers(self, transfers: Sequence[Load | Backup], now_s: float) -> None:
        """Note that these copies go to every rank."""
        for transfer in transfers:
            transfer.send(self._ranks, now_s)
            self.transfers[transfer.transfer_id] = transfer
        self._begin_oldest_transfer(now_s)

    def acknowledge_step(self, result: StepResult) -> None:
        """Note that one rank has done a plan."""
        flight = self.steps.get(result.step)
        if flight is None or result.rank not in flight.waiting_ranks:
            raise AccountingError(
                f"rank {result.rank} acknowledged step {result.step}; in flight are "
                f"{sorted(self.steps)}"
            )
        flight.waiting_ranks.discard(result.rank)
        # All ranks sample the same tokens. Always the same one is believed, whichever answers last.
        if result.rank == self._ranks[0]:
            flight.result = result

    def take_done_step(self, now_s: float) -> StepInFlight | None:
        """Take out the oldest plan if every rank has done it; the next one runs from now on."""
        oldest = self.oldest_step
        if oldest is None or oldest.waiting_ranks:
            return None

        self._remove(oldest)
        if self.oldest_step is not None:
            self.oldest_step.started_s = now_s
        return oldest

    def leave_out(self, message: StepsLeftOut, now_s: float) -> list[StepInFlight]:
        """Take out the oldest steps, which the only rank of the lane leaves out, as it says.

        Raises AccountingError if they are not the oldest, or not all repetitions.
        """
        numbers = range(message.step, message.step + message.num_steps)
        oldest = list(itertools.islice(self.steps.values(), len(numbers)))
        are_oldest = [step.step for step in oldest] == list(numbers)
        if len(self._ranks) > 1 or not (are_oldest and all(step.repetition for step in oldest)):
            raise AccountingError(
                f"rank {message.rank} leaves out steps {numbers}; in flight are "
                f"{sorted(self.steps)}"
            )
        for step in oldest:
            self._remove(step)
        if self.oldest_step is not None:
            self.oldest_step.started_s = now_s
        return oldest

    def _remove(self, step: StepInFlight) -> None:
        del self.steps[step.step]
        # With its last repetition a plan is done.
        if step.repetition == step.num_repeats:
            self.num_row_plans -= step.most_tokens > 0

    def check(self) -> None:
        """Raise AccountingError unless the plans with rows are counted."""
        steps = self.steps.values()
        counted = sum(
            step.repetition == step.num_repeats and step.most_tokens > 0 for step in steps
        )
        if counted != self.num_row_plans:
            raise AccountingError(
                f"{counted} plans in flight have rows; {self.num_row_plans} are counted"
            )

    def acknowledge_transfer(
        self, transfer_id: TransferId, rank: int, *, is_stale: bool, now_s: float
    ) -> Load | Backup | None:
        """Note that one rank has done a load or backup; returns it once every rank has."""
        transfer = self.transfers.get(transfer_id)
        if transfer is None or rank not in transfer.waiting_ranks:
            raise AccountingError(
                f"rank {rank} acknowledged transfer {transfer_id}, which is not in flight"
            )
        if not transfer.acknowledge(rank, is_stale=is_stale):
            return None
        del self.transfers[transfer_id]
        self._begin_oldest_transfer(now_s)
        # Rows that waited for it run from now on, so their step's time is counted from here.
        for step in self.steps.values():
            step.end_load(transfer_id, now_s)
        return transfer

    def _begin_oldest_transfer(self, now_s: float) -> None:
        oldest = self.oldest_transfer
        if oldest is not None and oldest.first_s is None:
            oldest.come_first(now_s)

    def num_held_pages(self, group: int) -> int:
        """GPU pages of a KV group that the copies sent name, each counted once."""
        held = [transfer.page_ids[group] for transfer in self.transfers.values()]
        return len(np.unique(np.concatenate(held))) if held else 0
