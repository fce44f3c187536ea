"""The order in which grammars are compiled."""

from collections import OrderedDict, deque

from raydix.ids import TenantId
from raydix.runtime.scheduler.events import CompileGrammar


class GrammarTurns:
    """Owns: the grammars that wait to be compiled.

    Tenants take turns, so that whose grammars take long holds up others for one of them at a time.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[TenantId, deque[CompileGrammar]] = OrderedDict()
        """Each tenant has some; the one whose turn is next is the first."""

    def add(self, effect: CompileGrammar) -> None:
        """Let a grammar wait behind those of its tenant."""
        self._waiting.setdefault(effect.tenant, deque()).append(effect)

    def take(self) -> CompileGrammar:
        """The next one; there is one."""
        tenant, waiting = self._waiting.popitem(last=False)
        effect = waiting.popleft()
        if waiting:
            self._waiting[tenant] = waiting
        return effect
