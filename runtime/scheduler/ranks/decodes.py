"""The requests of a lane that decode, with their progress in columns: a step is one pass over them.

A request joins once its first token is known and leaves when its run ends. Meanwhile its progress
is kept here, where `RequestState` reads it from its slot. Its own object is touched only where
something happens: pages are published, the request ends.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import ClientId, Slot
from raydix.runtime.messages.arrays import Int32Array, Int64Array, frozen
from raydix.runtime.scheduler.ranks.decode_rows import DecodeRows
from raydix.runtime.scheduler.request.decode_progress import DecodeProgress
from raydix.runtime.scheduler.request.request import RequestState

_NO_STOP = -1
"""Fills the columns of stop ids; no token has it."""
_ALL = slice(None)
"""Picks all entries of a column, without a copy."""
_MAX_STOP_COLUMNS = 16
"""The most stop ids that a request keeps in the columns, which are as wide for every request as for
the one with most; a request with more has a set of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """What became of one step's tokens: in each array one entry per request that still decodes."""

    slots: Int32Array
    token_ids: Int32Array
    has_ended: NDArray[np.bool_]
    publishes: NDArray[np.bool_]
    """Whether each request has enough full pages for them to be published together."""


class DecodeBatch:
    """Owns: the progress of the requests of one lane that decode, by slot."""

    def __init__(self, *, num_slots: int, page_size: int, publish_tokens: int) -> None:
        """Start with all slots free; requests publish pages every `publish_tokens` tokens."""
        self._page_size = page_size
        self._publish_tokens = publish_tokens
        self.tokens_s = 0.0
        """The time at which the latest tokens became known."""
        self._requests: list[RequestState | None] = [None] * num_slots
        self._stamps = np.zeros(num_slots, dtype=np.int64)
        """The number of the request that has each slot, counted as requests join; 0: the slot is
        free. Rows quote the number, so that no row counts for a later request in its slot.
        """
        self._num_joined = 0
        self._slots: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        """The slots that decode, in ascending order."""

        self._num_prompt: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._num_sampled: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._num_known: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._progress = DecodeProgress(self._num_sampled, self._num_known)
        self._max_output: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._min_output: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._num_paged: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        """The number of tokens for which each slot's block table has pages."""

        self._stop_ids: NDArray[np.int32] = np.full((num_slots, 1), _NO_STOP, dtype=np.int32)
        self._has_stops = False
        """Whether some slot had stop ids when the last request joined."""
        self._long_stops: dict[int, frozenset[int]] = {}
        """The stop ids, by slot, of requests that have too many for the columns."""

        self._askings = np.zeros(num_slots, dtype=np.int64)
        self._client_of: dict[ClientId, int] = {}
        self._clients: list[ClientId] = []
        self._client_numbers: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)

        self._fresh: NDArray[np.int32] = np.zeros((num_slots, max(page_size, 16)), dtype=np.int32)
        """The known tokens of each slot that its request's chain does not have yet."""
        self._num_fresh: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        self._has_changed = False
        """Whether some request has joined or left since rows were last planned to be repeated."""
        self._num_sure_steps = 0
        """The number of further steps for which every request surely has a page to write to and a
        token to sample: they are planned without looking at each request.
        """

    def __len__(self) -> int:
        return len(self._slots)

    def join(self, request: RequestState) -> None:
        """Let a request decode that has its first token: each row samples one from now on."""
        slot = self.slot_of(request)
        # Before the slot counts as taken: until now its number is one of whoever had it before.
        self._client_numbers[slot] = self._client_number(request.client_id)
        self._num_joined += 1
        self._stamps[slot] = self._num_joined
        self._requests[slot] = request
        self._note_slots()

        self._num_prompt[slot] = request.num_prompt
        self._num_sampled[slot] = request.num_sampled
        self._num_known[slot] = request.num_output
        self._max_output[slot] = request.max_tokens
        self._min_output[slot] = request.submit.sampling.min_tokens

        self._num_fresh[slot] = 0
        self._askings[slot] = request.submit.asking
        self._set_stop_ids(slot, request.submit.stop_token_ids)

        self.table_grew(request)
        self._num_sure_steps = 0
        request.join(self._progress)

    def leave(self, request: RequestState) -> None:
        """Let a request go whose run ends; it keeps its progress itself again."""
        slot = self.slot_of(request)
        self.flush_tokens(request)
        request.leave(num_sampled=int(self._num_sampled[slot]))
        self._stamps[slot] = 0
        self._requests[slot] = None
        self._long_stops.pop(slot, None)
        self._note_slots()

    def _note_slots(self) -> None:
        self._slots = np.flatnonzero(self._stamps).astype(np.int32)
        self._has_changed = True

    def request(self, slot: int) -> RequestState:
        """The request that decodes in a slot."""
        request = self._requests[slot]
        assert request is not None, "the slot is empty"
        return request

    def slot_of(self, request: RequestState) -> Slot:
        """The slot in which a request decodes."""
        assert request.slot is not None, "only a running request decodes"
        return request.slot

    def table_grew(self, request: RequestState) -> None:
        """Note that the block table of a request has more pages than before."""
        self._num_paged[self.slot_of(request)] = len(request.table) * self._page_size

    def num_pages_to_come(self) -> int:
        """The number of pages that decoding requests still need before every token has one."""
        slots = self._slots
        lacking = self._num_prompt[slots] + self._num_sampled[slots] - self._num_paged[slots]
        return int((-(-np.maximum(lacking, 0) // self._page_size)).sum())

    def num_tokens_to_compute(self) -> int:
        """Tokens that exist and that no acknowledged step has computed."""
        slots = self._slots
        return int((self._num_sampled[slots] - self._num_known[slots] + 1).sum())

    def short_slots(self) -> list[int]:
        """Slots whose next token has no place in the block table."""
        slots = self._slots
        # Most turns of a lane find it without a request that decodes.
        if self._num_sure_steps or not len(slots):
            return []
        next_token = self._num_prompt[slots] + self._num_sampled[slots] - 1
        lacks = (next_token >= self._num_paged[slots]) & (
            self._num_sampled[slots] < self._max_output[slots]
        )
        return slots[lacks].tolist() if lacks.any() else []

    def plan(self) -> DecodeRows | None:
        """One row for each request with a place for its next token and one left to sample.

        None if there is no such request.
        """
        slots = self._slots
        if not len(slots):
            return None
        sampled = self._num_sampled[slots]
        starts = self._num_prompt[slots] + sampled - 1
        if self._num_sure_steps:
            self._num_sure_steps -= 1
            self._num_sampled[slots] = sampled + 1
            return DecodeRows(
                slots=slots, stamps=self._stamps[slots], starts=starts, output_positions=sampled
            )

        ready = (sampled < self._max_output[slots]) & (starts < self._num_paged[slots])
        if not ready.any():
            return None
        if ready.all():
            room = np.minimum(self._num_paged[slots] - starts, self._max_output[slots] - sampled)
            self._num_sure_steps = int(room.min()) - 1
        else:
            slots, sampled, starts = slots[ready], sampled[ready], starts[ready]
        self._num_sampled[slots] = sampled + 1
        return DecodeRows(
            slots=slots, stamps=self._stamps[slots], starts=starts, output_positions=sampled
        )

    @property
    def has_changed(self) -> bool:
        """Whether a step planned now would have other rows than what ranks repeat."""
        return self._has_changed

    def lacks_room(self, rows: DecodeRows, num_repeats: int) -> list[int]:
        """Slots of rows just planned whose block tables end before so many repetitions."""
        limits = np.minimum(num_repeats, self._num_left(rows))
        return rows.slots[self._num_places(rows) < limits].tolist()

    def repeat(self, rows: DecodeRows, num_repeats: int) -> DecodeRows:
        """Let ranks repeat rows that were just planned, each as long as it has tokens to sample.

        As often as all others have pages, `num_repeats` times at most.
        """
        if len(rows.slots) < len(self._slots) and not self._are_others_planned(rows):
            return rows
        left, places = self._num_left(rows), self._num_places(rows)
        lacking = places < left
        num_repeats = min(num_repeats, int(places[lacking].min(initial=num_repeats)))
        repeats = np.minimum(num_repeats, left).astype(np.int32)
        if not repeats.any():
            return rows
        self._num_sampled[rows.slots] += repeats
        self._num_sure_steps = max(0, self._num_sure_steps - num_repeats)
        self._has_changed = False
        return replace(rows, repeats=frozen(repeats))

    def take_back(self, rows: DecodeRows) -> None:
        """Take in that a step of these rows is left out."""
        slots = rows.slots[self.is_current(rows)]
        # Plans that were sent meanwhile are without those that seemed to be complete.
        if (self._num_sampled[slots] == self._max_output[slots]).any():
            self._has_changed = True
        self._num_sampled[slots] -= 1

    def _are_others_planned(self, rows: DecodeRows) -> bool:
        """Whether those without a row lack nothing but the results of steps that are sent."""
        others = np.setdiff1d(self._slots, rows.slots)
        return bool((self._num_sampled[others] == self._max_output[others]).all())

    def _num_left(self, rows: DecodeRows) -> Int32Array:
        """How many tokens each of these requests may sample behind those that are planned."""
        left: Int32Array = self._max_output[rows.slots] - self._num_sampled[rows.slots]
        return left

    def _num_places(self, rows: DecodeRows) -> Int32Array:
        """How many tokens behind those that are planned have a place in each block table."""
        slots = rows.slots
        planned = self._num_prompt[slots] + self._num_sampled[slots] - 1
        places: Int32Array = self._num_paged[slots] - planned
        return places

    def is_current(self, rows: DecodeRows) -> NDArray[np.bool_]:
        """Which rows still count: their slot still has the request for which they were planned."""
        return self._stamps[rows.slots] == rows.stamps

    def add_tokens(self, slots: Int32Array, token_ids: Int32Array, now_s: float) -> NewTokens:
        """Add one token to each of these requests, which are given by slot."""
        self.tokens_s = now_s
        num_fresh = self._num_fresh[slots]
        self._fresh[slots, num_fresh] = token_ids
        self._num_fresh[slots] = num_fresh + 1
        known = self._num_known[slots] + 1
        self._num_known[slots] = known

        has_ended = known >= self._max_output[slots]
        if self._has_stops:
            has_ended |= self._are_stops(slots, token_ids) & (known >= self._min_output[slots])
        computed = self._num_prompt[slots] + known - 1
        new = NewTokens(
            slots=slots,
            token_ids=token_ids,
            has_ended=has_ended,
            publishes=computed % self._publish_tokens == 0,
        )

        is_full = num_fresh == self._fresh.shape[1] - 1
        if is_full.any():
            for slot in slots[is_full].tolist():
                self.flush_tokens(self.request(slot))
        return new

    def _are_stops(self, slots: Int32Array, token_ids: Int32Array) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self._stop_ids[slots] == token_ids[:, None]).any(axis=1)
        for slot, stop_ids in self._long_stops.items():
            for place in np.flatnonzero(slots == slot).tolist():
                found[place] = int(token_ids[place]) in stop_ids
        return found

    def flush_tokens(self, request: RequestState) -> None:
        """Give a request the tokens that have become known since the last time."""
        slot = self.slot_of(request)
        num_fresh = int(self._num_fresh[slot])
        if num_fresh:
            self._num_fresh[slot] = 0
            request.add_output(self._fresh[slot, :num_fresh])

    def by_client(self, slots: Int32Array) -> list[tuple[ClientId, slice | NDArray[np.bool_]]]:
        """Each client of these slots, with what picks those that are its own."""
        numbers = self._client_numbers[slots]
        if not len(numbers):
            return []
        if (numbers == numbers[0]).all():
            return [(self._clients[numbers[0]], _ALL)]
        return [
            (self._clients[number], numbers == number) for number in np.unique(numbers).tolist()
        ]

    def askings(self, slots: Int32Array) -> Int64Array:
        """The number by which each client knows its request."""
        return self._askings[slots]

    def check(self) -> None:
        """Raise AccountingError unless columns and requests agree."""
        present = [slot for slot, request in enumerate(self._requests) if request is not None]
        if present != self._slots.tolist() or present != np.flatnonzero(self._stamps).tolist():
            raise AccountingError(
                f"requests decode in slots {present}; the columns say {self._slots.tolist()}"
            )

        for slot in present:
            request = self.request(slot)
            num_steps = self._num_paged[slot] - self._num_prompt[slot] - self._num_sampled[slot] + 1
            if self._num_sure_steps > min(
                num_steps, self._max_output[slot] - self._num_sampled[slot]
            ):
                raise AccountingError(
                    f"slot {slot} has room for {num_steps} steps; {self._num_sure_steps} are sure"
                )

            room = len(request.table) * self._page_size
            if request.slot != slot or self._num_paged[slot] != room:
                raise AccountingError(
                    f"slot {slot} has room for {self._num_paged[slot]} tokens; its table for {room}"
                )

            if not 1 <= self._num_known[slot] <= self._num_sampled[slot] <= self._max_output[slot]:
                figures = (
                    f"{self._num_known[slot]} of {self._num_sampled[slot]} of "
                    f"{self._max_output[slot]}"
                )
                raise AccountingError(
                    f"slot {slot}: known, planned and possible output disagree: {figures}"
                )

    def _client_number(self, client_id: ClientId) -> int:
        number = self._client_of.get(client_id)
        if number is None:
            if len(self._clients) > 2 * len(self._requests):
                self._forget_clients()
            number = self._client_of[client_id] = len(self._clients)
            self._clients.append(client_id)
        return number

    def _forget_clients(self) -> None:
        """Number the clients of the decoding requests anew, or the table would grow for ever."""
        numbers, places = np.unique(self._client_numbers[self._slots], return_inverse=True)
        self._client_numbers[self._slots] = places
        self._clients = [self._clients[number] for number in numbers.tolist()]
        self._client_of = {client_id: place for place, client_id in enumerate(self._clients)}

    def _set_stop_ids(self, slot: int, stop_ids: tuple[int, ...]) -> None:
        if len(stop_ids) > _MAX_STOP_COLUMNS:
            self._long_stops[slot] = frozenset(stop_ids)
            stop_ids = ()
        width = self._stop_ids.shape[1]
        if len(stop_ids) > width:
            wider = np.full((len(self._requests), len(stop_ids)), _NO_STOP, dtype=np.int32)
            wider[:, :width] = self._stop_ids
            self._stop_ids = wider
        self._stop_ids[slot] = _NO_STOP
        self._stop_ids[slot, : len(stop_ids)] = stop_ids
        self._has_stops = bool(self._long_stops) or bool((self._stop_ids != _NO_STOP).any())
