"""What a handle on several engines has counted of where its requests went, and why."""

from collections import Counter
from collections.abc import Collection, Iterable

from raydix.runtime.metrics import REQUEST_BOUNDS_S, Histogram
from raydix.runtime.routing.events import ROUTED_TIERS, Route

_KEPT_S = 600.0
"""The time for which an engine that is gone is still told of, so that no scrape misses its end."""


class RoutingFigures:
    """Owns: the counts of one handle, by the engines' names; they outlive its connections.

    Of a service's engines, whose names do not end, they go some time after the engine.
    """

    def __init__(self, engines: Iterable[str]) -> None:
        names = tuple(engines)
        self.num_routed: Counter[str] = Counter(dict.fromkeys(names, 0))
        """Requests that were sent to each engine."""
        self.num_split: Counter[str] = Counter(dict.fromkeys(names, 0))
        """Requests that another engine was asked to begin, by the engine where they go on."""
        self.num_tokens: Counter[tuple[str, str]] = Counter(
            {(name, tier): 0 for name in names for tier in ROUTED_TIERS}
        )
        """Prompt tokens that were expected to be found, by engine and tier."""
        self.num_keys = dict.fromkeys(names, 0)
        """Pages that are known of each engine."""
        self._gone_s: dict[str, float] = {}
        """Since when each engine that is counted has been gone."""
        self.late = Histogram(REQUEST_BOUNDS_S)
        """The delays of first tokens that came later than predicted."""
        self.early = Histogram(REQUEST_BOUNDS_S)
        """The time by which the others came sooner."""
        self.hand_over = Histogram(REQUEST_BOUNDS_S)
        """The time from the first token of what goes on elsewhere until the second one."""

    def count(self, route: Route) -> None:
        """A request is sent to an engine."""
        self.num_routed[route.name] += 1
        if route.then is not None:
            self.num_split[route.then.name] += 1
        for tier, tokens in route.tokens_by_tier.items():
            self.num_tokens[route.name, tier] += tokens

    def observe(self, late_s: float) -> None:
        """A first token has come so much later than predicted; less than 0: sooner."""
        (self.late if late_s > 0 else self.early).observe(abs(late_s))

    def observe_hand_over(self, seconds: float) -> None:
        """The second token of a request has come so long after the first one, from elsewhere."""
        self.hand_over.observe(seconds)

    def note_keys(self, engine: str, num_keys: int) -> None:
        """Note how many pages of an engine are known."""
        self.num_keys[engine] = num_keys

    def forget(self, engine: str) -> None:
        """Nothing is known of an engine any more."""
        self.num_keys[engine] = 0

    def note_there(self, engines: Collection[str], now_s: float) -> None:
        """Note which engines there are; forget the counts of those that have been gone for long.

        Should one of that name come back later, its counts begin at zero, as its own do.
        """
        gone = self._names().difference(engines)
        self._gone_s = {name: self._gone_s.get(name, now_s) for name in gone}
        for name in [each for each, since_s in self._gone_s.items() if now_s - since_s >= _KEPT_S]:
            del self._gone_s[name]
            for counts in (self.num_routed, self.num_split, self.num_keys):
                counts.pop(name, None)
            for key in [each for each in self.num_tokens if each[0] == name]:
                del self.num_tokens[key]

    def _names(self) -> set[str]:
        """The engines of which anything is counted."""
        by_tier = {name for name, _ in self.num_tokens}
        return by_tier.union(self.num_routed, self.num_split, self.num_keys)
