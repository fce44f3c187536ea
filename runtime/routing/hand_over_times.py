"""What it takes until a request goes on at another node, as those before it have shown.

The rates of two nodes foresee a part of it: what is queued, and the copies. The rest is learnt as
any time is (`predictors.py`), by what was foreseen instead of an amount: at first all takes as long
as foreseen. Whoever is believed to be too slow is handed nothing, so nothing refutes that: what was
seen is forgotten after a while, and a request shows it again.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import NodeId, RequestId
from raydix.runtime.routing.predictors import TimePredictor

_AS_FORESEEN = 1.0
"""Foreseen seconds that pass in a second, before anything is observed."""
_FULL_S = 0.05
"""Foreseen seconds of hand-overs that make what was observed before them count by a part less."""
_MAX_BEGUN = 65_536
"""The most requests of which the rest may yet be asked."""


@dataclass(frozen=True, slots=True)
class Way:
    """From where to where a request goes."""

    first: NodeId
    then: NodeId

    def has(self, node: NodeId) -> bool:
        """Whether it begins or ends there."""
        return node in (self.first, self.then)


@dataclass(frozen=True, slots=True)
class _Open:
    way: Way
    foreseen_s: float
    began_s: float


class HandOverTimes:
    """Owns: how long hand-overs have taken on each way, and those that have begun."""

    def __init__(self) -> None:
        self._learnt: dict[Way, TimePredictor] = {}
        self._begun: OrderedDict[RequestId, _Open] = OrderedDict()
        """What has its first token, by the name by which that was asked for."""
        self._going_on: dict[RequestId, _Open] = {}
        """What was asked of the next node, by the name by which it was."""
        self._num_to: Counter[NodeId] = Counter()
        """How many of both go on at each node."""

    @property
    def num_open(self) -> int:
        """Hand-overs that have begun, and whose second token has not come."""
        return len(self._begun) + len(self._going_on)

    def num_to(self, node: NodeId) -> int:
        """Hand-overs that have begun and go on at a node, whose second token has not come."""
        return self._num_to[node]

    def predict_s(self, way: Way, foreseen_s: float, now_s: float) -> float:
        """The time from the first token until the second one."""
        learnt = self._learnt.get(way)
        return foreseen_s if learnt is None else learnt.predict_s(foreseen_s, now_s)

    def begin(self, name: RequestId, way: Way, foreseen_s: float, now_s: float) -> None:
        """The first token of a request has come, which goes on elsewhere."""
        self._begun[name] = _Open(way, foreseen_s, now_s)
        self._num_to[way.then] += 1
        while len(self._begun) > _MAX_BEGUN:
            self._close(self._begun.popitem(last=False)[1])

    def go_on(self, name: RequestId, node: NodeId, then_named: RequestId) -> None:
        """The rest of a request is asked of a node, by another name: where it was foreseen, or not.

        What has not begun changes nothing.
        """
        begun = self._begun.pop(name, None)
        if begun is not None and begun.way.then == node:
            self._going_on[then_named] = begun
        elif begun is not None:
            self._close(begun)

    def end(self, then_named: RequestId, now_s: float) -> float | None:
        """The second token has come, from which is learnt; None: nothing goes on by this name.

        Returns how long it took, in seconds.
        """
        begun = self._going_on.pop(then_named, None)
        if begun is None:
            return None
        self._close(begun)
        took_s = now_s - begun.began_s
        self._times_of(begun.way).observe(begun.foreseen_s, took_s, now_s)
        return took_s

    def drop(self, then_named: RequestId, now_s: float) -> None:
        """What goes on ends before its second token, which takes longer; others change nothing."""
        begun = self._going_on.pop(then_named, None)
        if begun is not None:
            self._close(begun)
            times = self._times_of(begun.way)
            times.observe_at_least(begun.foreseen_s, now_s - begun.began_s, now_s)

    def give_up(self, name: RequestId) -> None:
        """A request ends with its first token, and nothing goes on; others change nothing."""
        if (begun := self._begun.pop(name, None)) is not None:
            self._close(begun)

    def forget(self, node: NodeId) -> None:
        """A node is gone: its number never comes again."""
        for opened in (self._begun, self._going_on):
            for name in [each for each, begun in opened.items() if begun.way.has(node)]:
                self._close(opened.pop(name))
        self._learnt = {way: each for way, each in self._learnt.items() if not way.has(node)}

    def _times_of(self, way: Way) -> TimePredictor:
        """What was learnt of a way, or will be."""
        start = TimePredictor(_AS_FORESEEN, full_amount=_FULL_S)
        return self._learnt.setdefault(way, start)

    def _close(self, begun: _Open) -> None:
        self._num_to[begun.way.then] -= 1
        if not self._num_to[begun.way.then]:
            del self._num_to[begun.way.then]

    def check(self) -> None:
        """Raise AccountingError unless what goes on is counted where it does."""
        opened = (*self._begun.values(), *self._going_on.values())
        found = Counter(begun.way.then for begun in opened)
        if found != self._num_to:
            raise AccountingError(f"{self._num_to} hand-overs are counted; there are {found}")
