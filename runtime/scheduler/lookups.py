"""Lookups of chains in L2 and L3: which are open, whose turn is next, what is unanswered."""

from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

from raydix.errors import AccountingError
from raydix.ids import LookupId, RequestId
from raydix.runtime.scheduler.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.request_order import OrderKey, RequestOrder

Id = TypeVar("Id")
Asker = RequestState | PrefetchHint
"""For whom a chain is looked up."""
Pages = Sequence[bytes]
"""Pages of a chain, by their short keys."""


class Unanswered(Generic[Id]):
    """Owns: since when HostMemory has owed which answers, oldest first.

    The clock of a question starts at the first event after it: until then it may not have been
    sent, and the time that the Scheduler's own turn takes is not HostMemory's silence.
    """

    def __init__(self) -> None:
        self._since_s: dict[Id, float] = {}
        self._unsent: list[Id] = []

    def __len__(self) -> int:
        return len(self._since_s) + len(self._unsent)

    @property
    def has_new(self) -> bool:
        """Something was asked by the event that is being handled."""
        return bool(self._unsent)

    def add(self, question: Id) -> None:
        """HostMemory is asked this while an event is handled."""
        self._unsent.append(question)

    def start_clocks(self, now_s: float) -> bool:
        """A new event has come: what was asked before it is sent. True if there was any."""
        has_new = bool(self._unsent)
        self._since_s.update(dict.fromkeys(self._unsent, now_s))
        self._unsent.clear()
        return has_new

    def discard(self, question: Id) -> None:
        """It is answered, or of no interest any more."""
        if self._since_s.pop(question, None) is None and question in self._unsent:
            self._unsent.remove(question)

    def take_overdue(self, patience_s: float, now_s: float) -> list[Id]:
        """Take out what has been owed for `patience_s` or longer."""
        found: list[Id] = []
        for question, since_s in self._since_s.items():
            if since_s + patience_s > now_s:
                break
            found.append(question)
        for question in found:
            del self._since_s[question]
        return found

    def clear(self) -> None:
        """HostMemory is gone and owes nothing."""
        self._since_s.clear()
        self._unsent.clear()


class Lookups:
    """Owns: which lookups are open and for whom, who is next, and which pages of L2 they claim.

    What comes from L3 takes room in L2 until its request has loaded it. So a request claims room
    for the pages that its lookup may bring, and lookups are sent in the order of the queue while
    their claims fit. A page that several requests claim counts once. If the claim of the first in
    the queue does not fit, it waits for another claim to end; but not for those of requests that
    are in the queue again themselves, since these wait for it.
    """

    def __init__(self) -> None:
        """For one HostMemory: the next one knows of no lookup."""
        self._max_claimed_pages = 0
        self._open: dict[LookupId, Asker] = {}
        self._turns = RequestOrder()
        self._wanted: dict[RequestId, Pages] = {}
        self._claims: dict[RequestId, Pages] = {}
        self._num_claims: dict[bytes, int] = {}
        """By page: how many requests claim it."""
        self._num_ended_claims = 0
        self._retries_after: dict[RequestId, int] = {}
        """For a request whose lookup found no room in L2: how many claims had ended by then. It is
        sent again once more of them have.
        """
        self._blocked: tuple[RequestId, int] | None = None
        """Who was first and did not fit, and how many claims had ended by then."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_queued(self) -> int:
        """Requests whose lookup is still to be sent."""
        return len(self._turns)

    @property
    def num_claimed_pages(self) -> int:
        """Pages of L2 that are kept for what open and answered lookups bring from L3."""
        return len(self._num_claims)

    def open(self, lookup_id: LookupId, asker: Asker) -> None:
        """A lookup is sent."""
        self._open[lookup_id] = asker

    def close(self, lookup_id: LookupId) -> None:
        """A lookup has ended, or its answers are of no interest any more."""
        self._open.pop(lookup_id, None)

    def find(self, lookup_id: LookupId) -> Asker | None:
        """Who waits for reports of this lookup; None if nobody does any more."""
        return self._open.get(lookup_id)

    def askers(self) -> list[Asker]:
        """Whose lookups are open or due."""
        return [*self._open.values(), *self._turns]

    def chains(self) -> list[Pages]:
        """What is claimed, and what would be."""
        return [*self._claims.values(), *self._wanted.values()]

    def set_room(self, num_pages: int) -> None:
        """L2 keeps so many pages that come from L3 for those who wait."""
        self._max_claimed_pages = num_pages

    def enqueue(self, request: RequestState, pages: Pages, key: OrderKey) -> None:
        """A request is to be looked up in its turn, which may bring `pages` from L3."""
        if request.request_id in self._claims:
            # From now on whoever is first need not wait for this claim, so look at it again.
            self._blocked = None
        self._wanted[request.request_id] = pages
        self._turns.put(request, key)

    def enqueue_again(self, request: RequestState, pages: Pages, key: OrderKey) -> bool:
        """L2 had no room for a request's pages: look it up again when another claim has ended.

        False, and it is not queued, if no other claim will end before its turn.
        """
        if not self._may_other_claims_end(request.request_id):
            return False
        self._retries_after[request.request_id] = self._num_ended_claims
        self.enqueue(request, pages, key)
        return True

    def move(self, request: RequestState, key: OrderKey) -> None:
        """A waiting request has another place: so has its lookup, if it is due."""
        if request.request_id in self._turns:
            self._turns.put(request, key)

    def next_to_send(self) -> RequestState | None:
        """Take out who is to be looked up now; its claim begins."""
        request = self._turns.first()
        if request is None or self._blocked == (request.request_id, self._num_ended_claims):
            return None
        name = request.request_id
        pages = self._wanted[name]
        has_no_room = self._retries_after.get(name) == self._num_ended_claims or not self._fits(
            pages
        )
        if has_no_room and self._may_other_claims_end(name):
            self._blocked = name, self._num_ended_claims
            return None
        self.withdraw(request)
        self._claim(name, pages)
        return request

    def withdraw(self, asker: Asker) -> None:
        """Its lookup is not to be sent, if it was due; a claim that it has stays."""
        self._turns.discard(asker.request_id)
        self._wanted.pop(asker.request_id, None)
        self._retries_after.pop(asker.request_id, None)

    def narrow_claim(self, request: RequestState, pages: Pages) -> None:
        """A report says that these pages at most come from L3."""
        if request.request_id in self._claims:
            self._claim(request.request_id, pages)

    def num_claimed_by(self, request: RequestState) -> int:
        """Pages that one request claims."""
        return len(self._claims.get(request.request_id, ()))

    def end_claim(self, request: RequestState) -> None:
        """The request has loaded what L3 brought, or wants it no more."""
        self.withdraw(request)
        self._claim(request.request_id, ())

    def check(self, waiting: set[RequestId]) -> None:
        """Raise AccountingError unless the claims add up and only those that wait are due."""
        counted = Counter(page for pages in self._claims.values() for page in pages)
        if counted != self._num_claims:
            raise AccountingError(
                f"{len(self._num_claims)} pages are claimed; the claims name {len(counted)}"
            )

        due = {request.request_id for request in self._turns}
        if (
            due != self._wanted.keys()
            or not due <= waiting
            or not self._retries_after.keys() <= due
        ):
            raise AccountingError(
                f"{len(due)} lookups are due, {len(self._wanted)} sizes known, {len(waiting)} wait"
            )

    def _fits(self, pages: Pages) -> bool:
        num_new = sum(page not in self._num_claims for page in pages)
        return not num_new or len(self._num_claims) + num_new <= self._max_claimed_pages

    def _may_other_claims_end(self, name: RequestId) -> bool:
        """Some other claim will end by itself: its request does not wait for a turn again."""
        return any(other != name and other not in self._wanted for other in self._claims)

    def _claim(self, name: RequestId, pages: Pages) -> None:
        former = self._claims.pop(name, ())
        if pages:
            self._claims[name] = pages
        counts = self._num_claims
        for page in pages:
            counts[page] = counts.get(page, 0) + 1
        num_before = len(counts)
        for page in former:
            if counts[page] == 1:
                del counts[page]
            else:
                counts[page] -= 1
        # A claim that ends counts even if others claim the same pages.
        self._num_ended_claims += len(counts) < num_before or (bool(former) and not pages)
