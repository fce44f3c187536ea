"""Where HostMemory can fetch what its L2 lacks: storage, and the L2 of other nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import L3_SOURCE, SourceId
from raydix.runtime.messages.host import LookupProgress, PageSource
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.routing.predictors import TimePredictor
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.mirror import Mirror

_START_BYTES_PER_S = 10e9
"""What is believed of an origin before any page has come from it: rather too quick, so that it is
tried.
"""
_FULL_FETCH_S = 0.002
"""Seconds after which a fetch counts in full for the rate; a quicker one counts less."""
_GIVEN_UP = (PageSource.CANCELLED, PageSource.TIMED_OUT)
"""Why pages did not come that may have been on their way."""


class Origin:
    """Owns: what is known of one place: which pages it has, and how quickly they come."""

    def __init__(self, source: SourceId, name: str, distance: PageSource, keys: Mirror | None):
        self.source = source
        self.name = name
        self.distance = distance
        """What its pages are told as; of two that are as quick the nearer one is asked."""
        self.keys = keys
        """None: only a lookup tells what it has."""
        self.rate = _start_rate()
        """How long lookups there take, from asking to the last page, by bytes."""


def _start_rate() -> TimePredictor:
    return TimePredictor(_START_BYTES_PER_S, full_amount=_START_BYTES_PER_S * _FULL_FETCH_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one origin would bring of a prompt."""

    origin: Origin
    num_pages: int
    """The number of pages by which the prefix would grow; of L3 that is a hope."""
    seconds: float
    """The predicted time until they are in L1."""
    compute_s: float
    """The predicted time to compute them instead."""

    @property
    def saved_s(self) -> float:
        """The time that would be saved."""
        return self.compute_s - self.seconds


def choose_offer(offers: Sequence[Offer]) -> Offer | None:
    """The offer that saves most time, of equal ones the nearest; None if computing is quicker."""
    worth = [offer for offer in offers if offer.saved_s > 0.0]
    return min(
        worth,
        key=lambda offer: (-offer.saved_s, offer.origin.distance, offer.origin.source),
        default=None,
    )


class Origins:
    """Owns: the list of origins, and how quickly pages come from other nodes.

    L3 is always the first origin, whether or not there is one.
    """

    def __init__(self, num_groups: int) -> None:
        """Start with L3 alone, of a model with `num_groups` KV groups."""
        self._num_groups = num_groups
        self.storage = Origin(L3_SOURCE, "l3", PageSource.L3, None)
        self.pull_rate = _start_rate()
        """How long lookups at peers take, by bytes: what any of them brings is learnt from."""
        self._peers: dict[SourceId, Origin] = {}

    @property
    def peers(self) -> Sequence[Origin]:
        """Other nodes whose L2 can be pulled from, in the order in which they came."""
        return tuple(self._peers.values())

    def find(self, source: SourceId) -> Origin | None:
        """The origin of a number; None if it has gone."""
        return self.storage if source == L3_SOURCE else self._peers.get(source)

    def add(self, found: PeerFound) -> None:
        """Another node has come, of which no key is known yet."""
        keys = Mirror(self._num_groups)
        self._peers[found.source] = Origin(found.source, found.name, PageSource.PEER, keys)

    def remove(self, gone: PeerGone) -> list[set[bytes]]:
        """Another node is out of reach; returns its keys, for the caller to free piece by piece."""
        keys = self._peers.pop(gone.source).keys
        return [] if keys is None else keys.take_all()

    def follow(self, update: MirrorUpdate) -> None:
        """Follow the changes of another node's L2, unless it has gone."""
        origin = self._peers.get(update.source)
        if origin is not None and origin.keys is not None:
            origin.keys.follow(update)

    def learn(self, report: LookupProgress, settings: SchedulerSettings, now_s: float) -> None:
        """Learn from a lookup that has ended how quickly its origin brings pages.

        What a peer has not brought in time takes longer than it was waited for. Of L3 this says
        nothing, as it may not have had the pages.
        """
        origin = self.find(report.source)
        if origin is None:
            return
        brought = [sources.count(origin.distance) for sources in report.sources]
        num_bytes = settings.bytes_of(brought)
        if origin is self.storage:
            origin.rate.observe(num_bytes, report.seconds, now_s)
            return

        given_up = [sum(map(sources.count, _GIVEN_UP)) for sources in report.sources]
        asked_bytes = num_bytes + settings.bytes_of(given_up)
        for rate in (origin.rate, self.pull_rate):
            rate.observe(num_bytes, report.seconds, now_s)
            if any(given_up):
                rate.observe_at_least(asked_bytes, report.seconds, now_s)

    def lose_peers(self) -> list[set[bytes]]:
        """HostMemory is gone, and with it all ways to other nodes; returns their keys."""
        gone = [PeerGone(source=source) for source in self._peers]
        return [keys for each in gone for keys in self.remove(each)]

    def figures(self) -> dict[str, int]:
        """How many nodes can be pulled from, and how many pages these have."""
        known = [len(peer.keys) for peer in self._peers.values() if peer.keys is not None]
        return {"peers": len(self._peers), "peer_known_pages": sum(known)}
