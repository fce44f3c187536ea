"""The order in which grammars are compiled, and how long each may take."""

from collections import OrderedDict, deque
from dataclasses import dataclass

from raydix.ids import GrammarKey, TenantId
from raydix.runtime.scheduler.events import CompileGrammar

BUDGETS_S = (0.25, 1.0, 5.0)
"""The seconds of a processor that a grammar may take when it is tried first, and thereafter."""
_NUM_TRIED = 2
"""How many are tried at once."""
_NUM_TRIED_AGAIN = 1
"""How many of these may have been tried before."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try to compile a grammar; none is equal to another."""

    effect: CompileGrammar
    num_before: int
    """How often it was tried before."""

    @property
    def budget_s(self) -> float:
        """The seconds of a processor that it may take."""
        return BUDGETS_S[self.num_before]

    @property
    def is_last(self) -> bool:
        """Whether a grammar that takes longer is given up."""
        return self.num_before + 1 == len(BUDGETS_S)


class GrammarTurns:
    """Owns: the grammars that wait to be compiled, and the tries that are under way.

    Most grammars take little, and what a hostile one takes nobody can tell from its text: so all
    are tried for a short time, one of them always for the first time, and those that take longer
    come again behind others. Tenants take turns among those that were tried as often.
    """

    def __init__(self) -> None:
        self._waiting: list[OrderedDict[TenantId, deque[Attempt]]] = [
            OrderedDict() for _ in BUDGETS_S
        ]
        """A line for each tenant, apart for each number of tries before. No line is empty, and the
        one whose turn is next is the first.
        """
        self._tried: set[Attempt] = set()

    def add(self, effect: CompileGrammar) -> None:
        """Let a new grammar wait behind those of its tenant."""
        self._add(Attempt(effect, 0))

    def _add(self, attempt: Attempt) -> None:
        waiting = self._waiting[attempt.num_before]
        waiting.setdefault(attempt.effect.tenant, deque()).append(attempt)

    def begin(self) -> Attempt | None:
        """Begin the next try; None: there is none, or as many are under way as may be."""
        if len(self._tried) >= _NUM_TRIED:
            return None
        num_again = sum(each.num_before > 0 for each in self._tried)
        again = self._waiting[1:] if num_again < _NUM_TRIED_AGAIN else []
        for waiting in (*again, self._waiting[0]):
            if waiting:
                attempt = _next(waiting)
                self._tried.add(attempt)
                return attempt
        return None

    def end(self, attempt: Attempt) -> None:
        """End a try, whatever has come of it."""
        self._tried.remove(attempt)

    def try_longer(self, attempt: Attempt) -> None:
        """Let a grammar wait to be tried again, as its time was too short."""
        self._add(Attempt(attempt.effect, attempt.num_before + 1))

    def drop(self, key: GrammarKey) -> list[Attempt]:
        """Let a grammar wait no more. Returns the tries of it that are under way."""
        for waiting in self._waiting:
            for tenant, attempts in list(waiting.items()):
                kept = deque(each for each in attempts if each.effect.key != key)
                if len(kept) == len(attempts):
                    continue
                waiting[tenant] = kept
                if not kept:
                    del waiting[tenant]
        return [each for each in self._tried if each.effect.key == key]


def _next(waiting: OrderedDict[TenantId, deque[Attempt]]) -> Attempt:
    tenant, attempts = waiting.popitem(last=False)
    attempt = attempts.popleft()
    if attempts:
        waiting[tenant] = attempts
    return attempt
