"""Followers of the caches: each event is compared with the bytes, each index with the cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from raydix.ids import ClientId, ConnectionId
from raydix.runtime.cache.kv_index import KvIndex, Place
from raydix.runtime.cache.page_key import (
    MIRROR_KEY_BYTES,
    extend_keys,
    pack_tokens,
    root_key,
    short_keys,
    split_keys,
    unpack_tokens,
)
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.messages.kv_events import PagesStored, Tier
from raydix.runtime.messages.routing import EngineNews, FollowEngine
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.ranks.lane import Lane
from tests.simulation.modelled_tokens import kv_of, prefix_hashes
from tests.simulation.ranks import SimulatedRank

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Holding = tuple[Place, int, set[bytes]]
"""What a place holds of a KV group, by short keys."""
_JOIN_INTERVAL = 40
"""Every so many events of a Scheduler somebody begins to follow it."""


_ASK_INTERVAL = 7
"""Every so many events of a Scheduler clients that route ask for news."""


class EventBeforePage(AssertionError):
    """A page was told of before it was there, or it holds something else than was told."""


class WrongIndex(AssertionError):
    """Whoever follows the events believes something else than the cores know."""


class Follower:
    """Owns: what one follower has been told, and what it has learnt of the contents of pages."""

    def __init__(self, cluster: Cluster, core: SchedulerCore, connection: ConnectionId) -> None:
        self._cluster, self._core, self._connection = cluster, core, connection
        self._index = KvIndex()
        self._chains: dict[bytes, tuple[int, ...] | None] = {}
        """All tokens up to the end of each page that was told of, by short key; None: not known."""
        self.is_whole = False

    def hear(self, effect: events.TellFollower) -> None:
        """Take what the core tells; L1's pages are compared with those of the ranks."""
        for event in effect.events:
            self._index.follow(event)
            if isinstance(event, PagesStored) and event.tier is Tier.L1:
                self._learn(event)
            elif isinstance(event, PagesStored):
                self._check_shared(event)
        self.is_whole = effect.is_whole

    def compare(self, holdings: Sequence[Holding]) -> None:
        """Raise WrongIndex unless this is what the core itself knows now."""
        if not self.is_whole or self._core._page_news.has_more:
            return
        for place, group, held in holdings:
            told = self._index.keys(place, group)
            if told != held:
                raise WrongIndex(f"{place}, group {group}: {len(told)} told, {len(held)} held")

    def _learn(self, event: PagesStored) -> None:
        keys = split_keys(event.keys, MIRROR_KEY_BYTES)
        if event.run is None:
            if not self._chains.keys() >= set(keys):
                raise WrongIndex(f"nobody has told what some of {len(keys)} pages of L1 hold")
            return
        size, run = self._core.settings.page_size, event.run
        tokens, salt = unpack_tokens(run.packed_tokens), run.cache_salt
        parent = () if run.parent is None else self._chains.get(run.parent)
        if parent is None and None not in self._core.settings.reaches:
            # Where all groups look back over windows, what comes before may never have been there.
            self._chains.update(dict.fromkeys(keys))
            return
        if parent is None:
            raise WrongIndex("nobody has told what the page before the first one holds")
        chain = (*parent, *tokens)
        packed = pack_tokens(chain)
        named = short_keys(extend_keys(root_key(cache_salt=salt), packed, size))
        if not named.endswith(event.keys) or len(tokens) != size * len(keys):
            raise EventBeforePage("pages are told under the keys of other tokens")
        for number, key in enumerate(keys):
            self._chains[key] = chain[: len(parent) + (number + 1) * size]
        self._check_content(event, chain, len(parent) // size)

    def _check_content(self, event: PagesStored, chain: tuple[int, ...], start: int) -> None:
        """Compare with what the ranks hold whose link the core knows, unless they have died."""
        assert event.lane is not None
        assert event.run is not None
        settings, lane = self._core.settings, self._core._lanes[event.lane]
        kind = settings.layout.groups[event.group].kind
        if kind not in (GroupKind.FULL, GroupKind.LATENT):
            return
        size, salt = settings.page_size, event.run.cache_salt
        match = lane.l1.tree.match(root_key(cache_salt=salt), pack_tokens(chain))
        if match.num_pages * size < len(chain):
            # A later change of the same turn has dropped them again.
            return
        hashes = [kv_of(each, event.group) for each in prefix_hashes(list(chain), salt)]
        for rank in self._ranks(event.lane):
            for page in range(start, match.num_pages):
                held = rank.pages[event.group][int(match.page_ids[event.group][page])]
                if held != hashes[page * size : (page + 1) * size]:
                    raise EventBeforePage(f"page {page} of a chain is told of, and not there")

    def _ranks(self, lane: int) -> Iterator[SimulatedRank]:
        attached = self._core._lanes[lane].step_group.attached
        for number in self._core._lanes[lane].ranks:
            rank = self._cluster.ranks[number]
            known = attached.get(number)
            if isinstance(rank, SimulatedRank) and known is not None and known.pid == rank.pid:
                yield rank

    def _check_shared(self, event: PagesStored) -> None:
        host, storage = self._cluster.node.host_memory, self._cluster.node.storage
        assert host is not None
        was_there = host.published
        if event.tier is Tier.L3:
            assert storage is not None
            was_there = storage.written
        names = {(event.group, key) for key in split_keys(event.keys, MIRROR_KEY_BYTES)}
        if not names <= was_there:
            raise EventBeforePage(f"{len(names - was_there)} pages are told to be in {event.tier}")


class Router:
    """Owns: what a client that routes believes of the keys. It asks now and then."""

    def __init__(self, core: SchedulerCore, number: int) -> None:
        self._core = core
        self.client_id = ClientId(f"router-{number}")
        self._index = KvIndex()
        self._is_whole = False

    def ask(self) -> events.ClientMessage:
        """What it says to be told the next news."""
        return events.ClientMessage(client_id=self.client_id, message=FollowEngine())

    def hear(self, news: EngineNews) -> None:
        """Take what it is told: keys alone, and a load that can be."""
        if news.is_anew:
            self._index, self._is_whole = KvIndex(), False
        for event in news.events:
            self._index.follow(event)
            if isinstance(event, PagesStored) and event.run is not None:
                raise WrongIndex("a client that routes is told what pages hold")
        self._is_whole = news.is_whole
        report = news.report
        if report is not None and not (report.busy_s >= 0 and 0 <= report.busy_fraction <= 1):
            raise WrongIndex(f"a load that cannot be: {report}")

    def compare(self, holdings: Sequence[Holding]) -> None:
        """Raise WrongIndex unless this is what the core itself knows now, if all was told."""
        keys = self._core._page_news.keys
        if not self._is_whole or not keys.follows(self.client_id) or keys.has_more(self.client_id):
            return
        if self._core._page_news.has_more:
            return
        by_which = self._core._routing_news._group
        for place, group, held in holdings:
            if place[0] is Tier.L3 or group != by_which:
                continue
            told = self._index.keys(place, group)
            if told != held:
                raise WrongIndex(f"{place}: {len(told)} told a router, {len(held)} held")


class Followers:
    """Owns: one follower that has been there from the start, and those who join for a moment;
    and so of the clients that route.
    """

    def __init__(self, cluster: Cluster, core: SchedulerCore) -> None:
        self._cluster, self._core = cluster, core
        self._followers: dict[ConnectionId, Follower] = {}
        self._routers: list[Router] = []
        self._num_joined = self._num_events = 0

    def join(self) -> ConnectionId:
        """Somebody begins to follow; the core has yet to hear of it."""
        # Links count upwards from 1.
        self._num_joined += 1
        connection = ConnectionId(-self._num_joined)
        self._followers[connection] = Follower(self._cluster, self._core, connection)
        return connection

    def hear(self, effect: events.TellFollower) -> None:
        """The core tells one of them."""
        if (follower := self._followers.get(effect.connection)) is not None:
            follower.hear(effect)

    def hear_news(self, effect: events.SendNews) -> None:
        """The core tells a client that routes what that has asked for."""
        for router in self._routers:
            if router.client_id == effect.client_id:
                router.hear(effect.news)

    def due(self) -> list[events.Event]:
        """Who comes, asks and goes after this event."""
        self._num_events += 1
        if self._num_events == 1:
            self._routers.append(Router(self._core, 1))
            return [events.FollowerAttached(connection=self.join()), self._routers[0].ask()]
        if self._num_events % _JOIN_INTERVAL:
            # Not in answer to what they are told, or it would go on for ever.
            asks = not self._num_events % _ASK_INTERVAL
            return [router.ask() for router in self._routers] if asks else []
        gone: list[events.Event] = []
        for connection in [*self._followers][1:]:
            del self._followers[connection]
            gone.append(events.FollowerLost(connection=connection))
        for router in self._routers[1:]:
            gone.append(events.ClientGone(client_id=router.client_id))
        self._routers[1:] = [Router(self._core, self._num_joined + 1)]
        asked = [router.ask() for router in self._routers]
        return [*gone, events.FollowerAttached(connection=self.join()), *asked]

    def compare(self) -> None:
        """Raise WrongIndex unless each that was told all knows what the core knows."""
        if self._core._page_news.has_more:
            return
        holdings = list(_held(self._core))
        for each in (*self._followers.values(), *self._routers):
            each.compare(holdings)


def _held(core: SchedulerCore) -> Iterator[Holding]:
    """The short keys of all pages of a core, counted page by page."""
    of_lanes = [_l1_of(lane) for lane in core._lanes]
    for group in range(core.settings.num_groups):
        for lane, (keys, page_ids) in zip(core._lanes, of_lanes, strict=True):
            held = set(compress(keys, page_ids[group]))
            yield (Tier.L1, lane.index), group, held
        view = core._source.view
        yield (Tier.L2, None), group, view.keys._groups[group] - view.keys._expected[group]
        yield (Tier.L3, None), group, view.objects._groups[group]


def _l1_of(lane: Lane) -> tuple[list[bytes], list[list[int]]]:
    """The short key of each page of a lane's chains, and where it is in each group; 0: nowhere."""
    nodes = list(lane.l1.tree.forest)
    keys = split_keys(short_keys(b"".join(node.keys for node in nodes)), MIRROR_KEY_BYTES)
    page_ids = [
        [page for node in nodes for page in node.page_ids[group].tolist()]
        for group in range(lane.settings.num_groups)
    ]
    assert all(len(pages) == len(keys) for pages in page_ids), "each page of a chain has a key"
    return list(keys), page_ids
