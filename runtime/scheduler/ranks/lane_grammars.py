"""Which grammars the ranks of a lane have."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from raydix.errors import AccountingError
from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import CompiledGrammar, GrammarChanges
from raydix.runtime.scheduler.request.grammar_need import GrammarNeed

_MAX_KEPT_BYTES = 64 << 20
"""The bytes of grammars that ranks keep for requests to come."""
_MAX_USED_BYTES = 512 << 20
"""The bytes of grammars that requests which run may go by."""
_MAX_UNSENT_BYTES = 64 << 20
"""The bytes of grammars that one plan may bring, or one more grammar's."""


class LaneGrammars:
    """Owns: the grammars that the lane's ranks have, or get with the next plan."""

    def __init__(self) -> None:
        self._num_bytes: OrderedDict[GrammarKey, int] = OrderedDict()
        """The bytes of each grammar, the one that was needed last at the end."""
        self._num_users: Counter[GrammarKey] = Counter()
        """How many admitted requests go by each."""
        self._unsent: dict[GrammarKey, CompiledGrammar] = {}
        self._unsent_vocabulary: bytes | None = None
        self._has_vocabulary = False

    @property
    def is_used(self) -> bool:
        """Whether some admitted request goes by a grammar."""
        return any(self._num_users.values())

    def has_room(self, need: GrammarNeed) -> bool:
        """Whether another request may run that goes by this grammar."""
        compiled = need.compiled
        if compiled is None or self._num_users[compiled.key]:
            return True
        used = sum(num_bytes for key, num_bytes in self._num_bytes.items() if self._num_users[key])
        unsent = sum(len(each.content) for each in self._unsent.values())
        return used + len(compiled.content) <= _MAX_USED_BYTES and unsent <= _MAX_UNSENT_BYTES

    def begin(self, need: GrammarNeed) -> None:
        """An admitted request goes by this grammar: the ranks are to have it."""
        compiled = need.compiled
        if compiled is None:
            return
        self._num_users[compiled.key] += 1
        if compiled.key not in self._num_bytes:
            self._num_bytes[compiled.key] = len(compiled.content)
            self._unsent[compiled.key] = compiled
        self._num_bytes.move_to_end(compiled.key)
        if not self._has_vocabulary:
            self._unsent_vocabulary, self._has_vocabulary = need.vocabulary, True

    def end(self, need: GrammarNeed) -> None:
        """A request that was admitted runs no more."""
        if need.key is None:
            return
        self._num_users[need.key] -= 1
        # No plan may come that would bring it, if all others wait for room behind it.
        if need.key in self._unsent and not self._num_users[need.key]:
            del self._unsent[need.key], self._num_bytes[need.key], self._num_users[need.key]

    def take_changes(self) -> GrammarChanges | None:
        """What the ranks are told with the next plan; None if nothing changes."""
        if not self._unsent:
            return None
        vocabulary, self._unsent_vocabulary = self._unsent_vocabulary, None
        compiled = tuple(self._unsent.values())
        self._unsent.clear()
        return GrammarChanges(
            vocabulary=vocabulary, compiled=compiled, dropped=tuple(self._drop_old())
        )

    def _drop_old(self) -> list[GrammarKey]:
        """Drop those that were not needed for the longest, until few are kept for nobody."""
        idle = [key for key in self._num_bytes if not self._num_users[key]]
        num_bytes = sum(self._num_bytes[key] for key in idle)
        dropped = []
        for key in idle:
            if num_bytes <= _MAX_KEPT_BYTES:
                break
            num_bytes -= self._num_bytes.pop(key)
            del self._num_users[key]
            dropped.append(key)
        return dropped

    def check(self, running: Iterable[GrammarNeed]) -> None:
        """Raise AccountingError unless the lane's requests are its users."""
        expected = Counter(need.key for need in running if need.key is not None)
        counted = {key: count for key, count in self._num_users.items() if count}
        if counted != expected:
            raise AccountingError(
                f"{sum(counted.values())} requests count as going by grammars; "
                f"{expected.total()} that run do"
            )
        if not self._num_users.keys() <= self._num_bytes.keys():
            raise AccountingError("a request goes by a grammar that the lane's ranks do not have")
