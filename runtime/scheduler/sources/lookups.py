"""Lookups of chains in L2 and L3: which are open, whose turn is next, what is unanswered."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from raydix.errors import AccountingError
from raydix.ids import LookupId, RequestId
from raydix.runtime.scheduler.request.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey, RequestOrder
from raydix.runtime.scheduler.sources.claims import Claims, Pages

Id = TypeVar("Id")
Asker = RequestState | PrefetchHint
"""A request or hint for which a chain is looked up."""


class Unanswered(Generic[Id]):
    """Owns: since when HostMemory has owed which answers, oldest first.

    The clock of a question starts at the first event after it: until then it may not have been
    sent, and the time that the Scheduler's own turn takes is not HostMemory's silence.
    """

    def __init__(self) -> None:
        # The oldest is looked for at each event: see `BackupQueue`.
        self._since_s: OrderedDict[Id, float] = OrderedDict()
        self._unsent: list[Id] = []
        self._overdue: set[Id] = set()
        """Overdue questions, which are given up some at a time unless they are answered before."""

    def __len__(self) -> int:
        return len(self._since_s) + len(self._unsent)

    def oldest_s(self, now_s: float) -> float | None:
        """The time since which the first answer is owed; now, if it was asked for just now.

        None: nothing is owed.
        """
        oldest_s = next(iter(self._since_s.values()), None)
        return now_s if oldest_s is None and self._unsent else oldest_s

    def add(self, question: Id) -> None:
        """Note that HostMemory is asked a question while an event is handled."""
        self._unsent.append(question)

    def start_clocks(self, now_s: float) -> None:
        """Start the clocks of what was asked before this event: by now it was sent."""
        if self._unsent:
            self._since_s.update(dict.fromkeys(self._unsent, now_s))
            self._unsent.clear()

    def discard(self, question: Id) -> None:
        """Forget a question that is answered, or of no interest any more."""
        self._overdue.discard(question)
        if self._since_s.pop(question, None) is None and question in self._unsent:
            self._unsent.remove(question)

    def note_overdue(self, patience_s: float, now_s: float) -> list[Id]:
        """The questions that have been open for `patience_s` or longer; each is told once."""
        found: list[Id] = []
        for question, since_s in self._since_s.items():
            # The oldest come first: all that follow are younger still.
            if since_s + patience_s > now_s:
                break
            found.append(question)
        for question in found:
            del self._since_s[question]
        self._overdue.update(found)
        return found

    def give_up(self, question: Id) -> bool:
        """Give up an overdue question; returns False if its answer has come."""
        is_owed = question in self._overdue
        self._overdue.discard(question)
        return is_owed

    def clear(self) -> None:
        """Forget all questions: HostMemory is gone and owes nothing."""
        self._since_s.clear()
        self._unsent.clear()
        self._overdue.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSource:
    """What there was of a source that is gone."""

    askers: list[Asker]
    """The askers whose lookups were open or due."""
    chains: list[Pages]
    """Pages that were claimed, or would have been: to free thousands at once takes tens of ms."""
    mirrors: list[set[bytes]]
    """Its keys, per KV group: to free a million at once takes 40 ms."""


@dataclass(slots=True)
class _Turn:
    """A lookup that is to be sent in its turn."""

    pages: Pages
    """Pages that L3 may bring, by short key."""
    refused_at: int | None = None
    """`Claims.num_times_freed` when L2 last had no room for the pages: it may once that grows."""


class Lookups:
    """Owns: which lookups are open and for whom, and whose is sent next.

    What comes from L3 takes room in L2 until its request has loaded it. So a request claims room
    for the pages that its lookup may bring, and lookups are sent in the order of the queue while
    their claims fit. If that of the first in the queue does not, it waits for another claim to end;
    but not for those of requests that are in the queue again themselves, since these wait for it.
    """

    def __init__(self) -> None:
        """Start without lookups, for one HostMemory: the next one knows of none."""
        self._open: dict[LookupId, Asker] = {}
        self._order = RequestOrder()
        """The requests that have a turn, in the order of the queue."""
        self._turns: dict[RequestId, _Turn] = {}
        self._claims = Claims()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_queued(self) -> int:
        """Requests whose lookup is still to be sent."""
        return len(self._turns)

    @property
    def num_claimed_pages(self) -> int:
        """Pages of L2 that are kept for what open and answered lookups bring from L3."""
        return self._claims.num_pages

    def open(self, lookup_id: LookupId, asker: Asker) -> None:
        """Note that a lookup is sent for `asker`."""
        self._open[lookup_id] = asker

    def close(self, lookup_id: LookupId) -> None:
        """Forget a lookup that has ended, or whose answers are of no interest any more."""
        self._open.pop(lookup_id, None)

    def find(self, lookup_id: LookupId) -> Asker | None:
        """The request or hint that waits for reports of this lookup; None if none does any more."""
        return self._open.get(lookup_id)

    def askers(self) -> list[Asker]:
        """All requests and hints whose lookups are open or due."""
        return [*self._open.values(), *self._order]

    def chains(self) -> list[Pages]:
        """The pages that are claimed, or would be if their lookup were sent."""
        return [*self._claims.chains, *(turn.pages for turn in self._turns.values())]

    def set_room(self, num_pages: int) -> None:
        """L2 keeps so many pages that come from L3 for those who wait."""
        self._claims.set_room(num_pages)

    def enqueue(self, request: RequestState, pages: Pages, key: OrderKey) -> None:
        """Look a request up in its turn; L3 may bring it `pages`."""
        self._turns[request.request_id] = _Turn(pages)
        self._order.put(request, key)

    def enqueue_again(self, request: RequestState, pages: Pages, key: OrderKey) -> bool:
        """Look a request up again, for whose pages L2 had no room, when another claim has ended.

        False, and it is not queued, if no other claim will end before its turn.
        """
        self.enqueue(request, pages, key)
        if not self._will_a_claim_end():
            self.withdraw(request)
            return False
        self._turns[request.request_id].refused_at = self._claims.num_times_freed
        return True

    def move(self, request: RequestState, key: OrderKey) -> None:
        """Move the due lookup, if any, of a waiting request that has got another place."""
        if request.request_id in self._turns:
            self._order.put(request, key)

    def next_to_send(self) -> RequestState | None:
        """Take out who is to be looked up now; its claim begins."""
        request = self._order.first()
        if request is None:
            return None
        turn = self._turns[request.request_id]
        if not self._has_room(turn) and self._will_a_claim_end():
            return None
        self.withdraw(request)
        self._claims.put(request.request_id, turn.pages)
        return request

    def _has_room(self, turn: _Turn) -> bool:
        # Asked at each event, so pages are counted only if something has changed.
        if turn.refused_at == self._claims.num_times_freed:
            return False
        if self._claims.has_room(turn.pages):
            return True
        turn.refused_at = self._claims.num_times_freed
        return False

    def _will_a_claim_end(self) -> bool:
        """Whether some claim ends by itself: its request does not wait for a turn."""
        return not self._claims.names <= self._turns.keys()

    def withdraw(self, asker: Asker) -> None:
        """Do not send an asker's lookup, if it was due; a claim that it has stays."""
        self._order.discard(asker.request_id)
        self._turns.pop(asker.request_id, None)

    def narrow_claim(self, request: RequestState, pages: Pages) -> None:
        """Narrow a request's claim to these pages: by a report, no others come from L3."""
        if request.request_id in self._claims.names:
            self._claims.put(request.request_id, pages)

    def num_claimed_by(self, request: RequestState) -> int:
        """Pages that one request claims."""
        return len(self._claims.pages_of(request.request_id))

    def end_claim(self, request: RequestState) -> None:
        """End the claim of a request that has loaded what L3 brought, or wants it no more."""
        self.withdraw(request)
        self._claims.put(request.request_id, ())

    def check(self, waiting: set[RequestId]) -> None:
        """Raise AccountingError unless the claims add up and only those that wait are due."""
        self._claims.check()
        due = {request.request_id for request in self._order}
        if due != self._turns.keys() or not due <= waiting:
            raise AccountingError(
                f"{len(due)} lookups are due, {len(self._turns)} turns known, {len(waiting)} wait"
            )
