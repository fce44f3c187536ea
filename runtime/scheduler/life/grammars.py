"""Grammars of requests: each content is compiled once, and kept for those who ask for it again."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial

from raydix.errors import AccountingError
from raydix.ids import GrammarKey, RequestId, TenantId
from raydix.runtime.messages.client import RequestFailure, SubmitRequest
from raydix.runtime.messages.grammar import CompiledGrammar
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.events import CompileGrammar, DropGrammar, GrammarCompiled
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.life.waiting_room import refuse_for_room
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.request.request import RequestState

_MAX_KEPT_BYTES = 128 << 20
"""The bytes of grammars that are kept."""
_MAX_KEPT_FAILURES = 1024
"""The number of grammars that are remembered because they cannot be compiled."""
_MAX_COMPILING = 256
"""The number of grammars that may wait to be compiled."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A compiled grammar, and what it is read with."""

    compiled: CompiledGrammar
    vocabulary: bytes


class Grammars:
    """Owns: which grammars are compiled, which are being compiled, and who waits for those."""

    def __init__(
        self, *, requests: Requests, life: Transitions, endings: Endings, outbox: Outbox
    ) -> None:
        self._requests = requests
        self._life = life
        self._endings = endings
        self._outbox = outbox
        self._compiling: dict[GrammarKey, list[tuple[RequestId, int]]] = {}
        """The requests that wait for each, by name and serial; some may have ended."""
        self._kept: OrderedDict[GrammarKey, _Kept] = OrderedDict()
        """The one that was asked for last at the end."""
        self._num_kept_bytes = 0
        self._failed: OrderedDict[GrammarKey, RequestFailure] = OrderedDict()

    def refusal(self, message: SubmitRequest) -> RequestFailure | None:
        """Why a new request cannot go by its grammar, as far as is known; None: it may."""
        grammar = message.grammar
        if grammar is None:
            return None
        key = grammar.key(tenant_of(message.cache_salt))
        if (failure := self._failed.get(key)) is not None:
            return replace(failure, parameter=grammar.parameter)
        is_new = key not in self._kept and key not in self._compiling
        if not is_new or message.known_output is not None:
            return None
        return refuse_for_room(
            len(self._compiling),
            _MAX_COMPILING,
            None if message.cache_salt is None else partial(self._num_compiling_of, message),
            what="grammars to be compiled",
            bound="the most",
        )

    def _num_compiling_of(self, message: SubmitRequest) -> int:
        """The number of grammars for which requests of this one's tenant wait."""
        tenant, living = tenant_of(message.cache_salt), self._requests.living
        return sum(
            any(name in living and _tenant(living[name]) == tenant for name, _ in waiting)
            for waiting in self._compiling.values()
        )

    def provide(self, request: RequestState) -> None:
        """Give a new request the grammar that it goes by, if any: at once or when there is one."""
        key, asked = request.grammar.key, request.grammar.asked
        if key is None or asked is None:
            return
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            request.grammar.take(kept.compiled, kept.vocabulary)
            return
        if key not in self._compiling:
            self._compiling[key] = []
            self._outbox.emit(CompileGrammar(key=key, grammar=asked, tenant=_tenant(request)))
        self._compiling[key].append(request.ticket)

    def drop_left(self) -> None:
        """Let nothing be compiled for nobody: those who waited for it may have ended."""
        if not self._requests.left_grammars:
            return
        for key in self._requests.take_left_grammars():
            if self._compiling.pop(key, None) is not None:
                self._outbox.emit(DropGrammar(key=key))

    def take(self, event: GrammarCompiled) -> None:
        """A grammar is compiled, or cannot be: those who wait for it go on, or fail."""
        # What was dropped, or what a former Scheduler asked for, may be answered: it is as good.
        waiting = self._compiling.pop(event.key, [])
        requests = [self._requests.living.get(name) for name, _ in waiting]
        kept = self._keep(event)
        for request, (_, serial) in zip(requests, waiting, strict=True):
            # The name may belong to a later request by now.
            if request is None or request.serial != serial:
                continue
            if kept is None:
                assert event.failure is not None, "there is a grammar or a failure"
                asked = request.submit.grammar
                name = None if asked is None else asked.parameter
                self._endings.fail_as(request, replace(event.failure, parameter=name))
                continue
            request.grammar.take(kept.compiled, kept.vocabulary)
            self._life.take_up_grammar(request)

    def check(self) -> None:
        """Raise AccountingError if a grammar is compiled for nobody, or a request waits in vain."""
        living = self._requests.living
        for key, waiting in self._compiling.items():
            if not any(name in living and living[name].serial == at for name, at in waiting):
                raise AccountingError(f"grammar {key.hex()} is compiled for nobody")
        for request in living.values():
            if request.grammar.is_missing and request.grammar.key not in self._compiling:
                raise AccountingError(f"the grammar of {request.request_id} is not being compiled")

    def _keep(self, event: GrammarCompiled) -> _Kept | None:
        """Keep what the next request of this content will need."""
        if event.content is None or event.vocabulary is None:
            # Whoever asks for what is wrong in itself is refused at once from now on.
            if event.failure is not None and event.is_lasting:
                self._failed[event.key] = event.failure
                if len(self._failed) > _MAX_KEPT_FAILURES:
                    self._failed.popitem(last=False)
            return None

        if (known := self._kept.get(event.key)) is not None:
            return known
        compiled = CompiledGrammar(key=event.key, content=event.content)
        kept = self._kept[event.key] = _Kept(compiled, event.vocabulary)
        self._num_kept_bytes += len(event.content)
        while self._num_kept_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_kept_bytes -= len(oldest.compiled.content)
        return kept


def _tenant(request: RequestState) -> TenantId:
    return tenant_of(request.submit.cache_salt)
