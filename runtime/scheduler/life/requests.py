"""Which requests and prefetch hints there are."""

import itertools
from collections import Counter
from collections.abc import Iterable

from raydix.errors import AccountingError
from raydix.ids import ClientId, GrammarKey, RequestId, TenantId
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.life.leaving import HandOver
from raydix.runtime.scheduler.life.orphans import Orphans
from raydix.runtime.scheduler.request.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.request.request import RequestState


class Requests:
    """Owns: which requests and hints exist, and which requests have no lane or no client."""

    def __init__(self) -> None:
        self.is_closing = False
        """Whether the engine is about to stop, and takes no new requests."""
        self.living: dict[RequestId, RequestState] = {}
        """All requests that have not ended."""
        self.unplaced: dict[RequestId, RequestState] = {}
        """Requests without a lane, in the order in which they get one; new ones wait for page keys.
        """
        self.orphans = Orphans()
        self._going_on: set[RequestId] = set()
        """Requests that wait, have a client, and were taken in before, here or elsewhere."""
        self.hints: dict[RequestId, PrefetchHint] = {}
        """Prefetch hints that were not answered yet, oldest first."""
        self.leaving: dict[RequestId, HandOver] = {}
        """Requests that have ended here, and go on elsewhere once L2 has their pages."""
        self._serials = itertools.count(1)
        self._of_session: Counter[tuple[str | None, str]] = Counter()
        """How many living requests each session has, by its salt and id."""
        self._of_tenant: Counter[TenantId] = Counter()
        """How many living requests each tenant has."""
        self._of_grammar: Counter[GrammarKey] = Counter()
        """How many living requests go by each grammar."""
        self.left_grammars: list[GrammarKey] = []
        """Grammars by which requests went until they ended, and none goes any more."""

    @property
    def is_empty(self) -> bool:
        """Whether no request lives, and none waits to go on elsewhere."""
        return not (self.living or self.leaving)

    def next_serial(self) -> int:
        """A number that no other request has had."""
        return next(self._serials)

    def is_in_use(self, name: RequestId) -> bool:
        """Whether a request or hint of this name is not answered or ended yet."""
        is_alive = name in self.living and name not in self.orphans
        return is_alive or name in self.hints or name in self.leaving

    def has_unplaced(self, until_s: float) -> bool:
        """Whether a request has no lane that has come until then."""
        first = next(iter(self.unplaced.values()), None)
        return first is not None and first.arrival_s <= until_s

    def num_waiting(self, num_placed: int) -> int:
        """The number of requests that are not admitted, of which `num_placed` wait on lanes.

        Those whose client is gone do not count.
        """
        return len(self.unplaced) + num_placed - self.orphans.num_waiting

    @property
    def num_going_on(self) -> int:
        """The number of those that wait which were taken in before, here or elsewhere."""
        return len(self._going_on)

    def num_living_of(self, tenant: TenantId) -> int:
        """The number of a tenant's requests that have not ended, those without a client too."""
        return self._of_tenant[tenant]

    def first_of_samples(self, request: RequestState) -> RequestState | None:
        """The living request whose prompt this one is a further sample of, if it is on a lane."""
        name = request.submit.sample_of
        # A suspect runs on the lane of suspects, wherever its prompt is cached.
        first = None if name is None or request.is_suspect else self.living.get(name)
        if first is None or first.client_id != request.client_id or name in self.unplaced:
            return None
        return None if first is request else first

    def close(self) -> None:
        """Take no new requests from now on."""
        self.is_closing = True

    def add(self, request: RequestState) -> None:
        """Add a new request; its page keys are hashed before it is queued on a lane."""
        self.living[request.request_id] = request
        self._of_tenant[tenant_of(request.submit.cache_salt)] += 1
        self.unplaced[request.request_id] = request
        self._let_wait(request)
        if request.submit.session_id is not None:
            self._of_session[request.submit.cache_salt, request.submit.session_id] += 1
        if request.grammar.key is not None:
            self._of_grammar[request.grammar.key] += 1

    def remove(self, request: RequestState) -> None:
        """Remove a request that has ended."""
        del self.living[request.request_id]
        tenant = tenant_of(request.submit.cache_salt)
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self.unplaced.pop(request.request_id, None)
        self.orphans.discard(request.request_id)
        self._going_on.discard(request.request_id)
        if request.submit.session_id is not None:
            session = request.submit.cache_salt, request.submit.session_id
            self._of_session[session] -= 1
            if not self._of_session[session]:
                del self._of_session[session]
        if (key := request.grammar.key) is not None:
            self._of_grammar[key] -= 1
            if not self._of_grammar[key]:
                del self._of_grammar[key]
                self.left_grammars.append(key)

    def take_left_grammars(self) -> list[GrammarKey]:
        """The grammars by which no request goes any more since this was last asked."""
        left, self.left_grammars = self.left_grammars, []
        return [key for key in left if key not in self._of_grammar]

    def has_session(self, session_id: str, cache_salt: str | None) -> bool:
        """Whether a request of this session lives."""
        return (cache_salt, session_id) in self._of_session

    def is_last_of_session(self, request: RequestState) -> bool:
        """Whether no other request of its session lives, as for one of no session."""
        session_id = request.submit.session_id
        if session_id is None:
            return True
        return self._of_session[request.submit.cache_salt, session_id] == 1

    def place(self, request: RequestState) -> None:
        """Note that a request has got a lane."""
        del self.unplaced[request.request_id]

    def displace(self, requests: Iterable[RequestState]) -> None:
        """Note that requests have lost their lane: they get others in this order.

        They go before those that never had one: what had come by a time is never behind what came
        later, so that nobody looks through thousands for it.
        """
        displaced = {request.request_id: request for request in requests}
        if displaced:
            self.unplaced = displaced | self.unplaced

    def admit(self, request: RequestState) -> None:
        """Note that a request waits no longer."""
        self._going_on.discard(request.request_id)

    def stop_running(self, request: RequestState) -> None:
        """Note that an admitted request waits again."""
        self.orphans.stopped_running(request.request_id)
        self._let_wait(request)

    def orphan(self, client_id: ClientId) -> tuple[list[RequestId], list[RequestId]]:
        """Note that a client is gone. Returns those of its requests that run, and the others."""
        running, waiting = self.orphans.add_all(self.living.values(), client_id)
        self._going_on.difference_update(waiting)
        return running, waiting

    def _let_wait(self, request: RequestState) -> None:
        if self._goes_on(request):
            self._going_on.add(request.request_id)

    def _goes_on(self, request: RequestState) -> bool:
        is_known = request.submit.known_output is not None
        return is_known and request.slot is None and request.request_id not in self.orphans

    def add_hint(self, hint: PrefetchHint) -> None:
        """Add a new hint."""
        self.hints[hint.request_id] = hint

    def add_leaving(self, hand_over: HandOver) -> None:
        """Add a request that has ended here and is about to go on elsewhere."""
        self.leaving[hand_over.request_id] = hand_over

    def remove_leaving(self, hand_over: HandOver) -> None:
        """Remove one whose client was told, or is gone."""
        del self.leaving[hand_over.request_id]

    def remove_hint(self, hint: PrefetchHint) -> None:
        """Remove a hint that was answered, or whose client is gone."""
        del self.hints[hint.request_id]

    def check(self) -> None:
        """Raise AccountingError unless those that go on are known, and no others."""
        going_on = {name for name, each in self.living.items() if self._goes_on(each)}
        if going_on != self._going_on:
            raise AccountingError(
                f"{len(going_on)} requests that wait were taken in before; {len(self._going_on)} "
                "are counted"
            )
