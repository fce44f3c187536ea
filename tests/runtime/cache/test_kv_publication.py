"""What subscribers are told, as an indexer reads it that goes by the wire alone."""

from collections.abc import Iterable

import msgspec
import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache import kv_publication
from raydix.runtime.cache.event_ring import EventRing
from raydix.runtime.cache.kv_publication import Publication, Told
from raydix.runtime.cache.kv_wire import AllBlocksCleared, BlockRemoved, BlockStored, encode_batch
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, short_keys
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.kv_events import (
    KvEvent,
    KvNews,
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
    TierCleared,
    TokenRun,
)
from tests.naive_indexer import NaiveIndexer, Overlap
from tests.simulation.layouts import FULL_AND_WINDOW, LAYOUT

PROMPT = list(range(12))


def keys_of(tokens: list[int], salt: str | None = None) -> bytes:
    """The short keys of the full pages of a chain."""
    return short_keys(extend_keys(root_key(cache_salt=salt), pack_tokens(tokens), 4))


def in_l1(
    tokens: list[int], start: int = 0, salt: str | None = None, lane: int = 0, group: int = 0
) -> PagesStored:
    """The pages of a chain from page `start` on come to L1."""
    keys = keys_of(tokens, salt)
    run = TokenRun(
        parent=ShortKeys(keys[(start - 1) * 16 : start * 16]) if start else None,
        packed_tokens=pack_tokens(tokens[start * 4 :]),
        cache_salt=salt,
    )
    keys = ShortKeys(keys[start * 16 :])
    return PagesStored(tier=Tier.L1, lane=lane, group=group, keys=keys, run=run)


def in_tier(tier: Tier, keys: bytes) -> PagesStored:
    return PagesStored(tier=tier, lane=None, group=0, keys=ShortKeys(keys))


class Subscriber:
    """Owns: a publication and what an indexer makes of one lane's stream."""

    def __init__(self, layout: KvLayout = LAYOUT, lane: int = 0) -> None:
        self.publication = Publication(layout)
        self.publication.begin()
        self.indexer, self._lane = NaiveIndexer(), lane
        self.told: list[Told] = []

    def hear(self, *events: KvEvent, is_whole: bool = True) -> list[Told]:
        """The Scheduler tells this; returns what subscribers are told."""
        told = self.publication.follow(KvNews(events=events, is_whole=is_whole))
        own = [each.event for each in told if each.lane in (self._lane, None)]
        self.indexer.take(encode_batch(own, 0.0, self._lane))
        self.told += told
        return told

    def overlap(self, prompt: list[int], salt: str | None = None) -> Overlap:
        return self.indexer.overlap(prompt, 4, salt)


def test_pages_are_found_by_tier_and_salt() -> None:
    subscriber = Subscriber()
    subscriber.hear(in_l1(PROMPT, salt="a"), in_tier(Tier.L2, keys_of(PROMPT, "a")))
    subscriber.hear(PagesRemoved(tier=Tier.L1, lane=0, group=0, keys=_last(keys_of(PROMPT, "a"))))

    assert subscriber.overlap(PROMPT, "a") == Overlap(2, 3, 3)
    assert subscriber.overlap(PROMPT) == Overlap(0, 0, 0)


def test_a_page_of_l2_is_told_once_it_is_known_what_it_holds() -> None:
    subscriber = Subscriber()
    assert not subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT)), in_tier(Tier.L3, keys_of(PROMPT)))
    told = subscriber.hear(in_l1(PROMPT))
    assert sorted(each.event.medium for each in told if isinstance(each.event, BlockStored)) == [
        "CPU",
        "GPU",
        "STORAGE",
    ]
    subscriber.hear(TierCleared(tier=Tier.L1, lane=0))
    assert subscriber.overlap(PROMPT) == Overlap(0, 3, 3)


def test_parents_come_before_what_continues_them() -> None:
    subscriber = Subscriber()
    keys = keys_of(PROMPT)
    subscriber.hear(in_l1(PROMPT))
    [told] = subscriber.hear(in_tier(Tier.L2, keys[32:] + keys[16:32] + keys[:16]))
    assert isinstance(told.event, BlockStored)
    assert told.event.token_ids == PROMPT
    assert told.event.parent_block_hash is None


def test_chains_that_part_are_told_apart() -> None:
    subscriber = Subscriber()
    fork = [*PROMPT[:4], 99, 98, 97, 96]
    subscriber.hear(in_l1(PROMPT), in_l1(fork, 1))
    told = subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT) + keys_of(fork)[16:]))
    assert len(told) == 2
    subscriber.hear(TierCleared(tier=Tier.L1, lane=0))
    assert subscriber.overlap(PROMPT).host == 3
    assert subscriber.overlap(fork).host == 2


def test_what_another_scheduler_finds_is_told_as_a_difference() -> None:
    subscriber = Subscriber()
    other = [77] * 8
    subscriber.hear(in_l1(PROMPT), in_l1(other), in_tier(Tier.L2, keys_of(PROMPT)))

    subscriber.publication.begin()
    assert not subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT)[:32]), is_whole=False)
    # Who comes meanwhile is told what is known to those who were there.
    assert len(subscriber.publication.state(0)) == 3
    told = subscriber.hear(in_l1(PROMPT[:4]))

    assert all(isinstance(each.event, BlockRemoved) for each in told)
    assert subscriber.overlap(PROMPT) == Overlap(1, 2, 2)
    assert subscriber.overlap(other) == Overlap(0, 0, 0)


def test_a_scheduler_that_is_lost_while_it_tells_changes_nothing() -> None:
    subscriber = Subscriber()
    subscriber.hear(in_l1(PROMPT))
    subscriber.publication.begin()
    subscriber.hear(in_l1([77] * 8), is_whole=False)
    subscriber.publication.begin()
    assert not subscriber.hear(in_l1(PROMPT))
    assert subscriber.overlap(PROMPT) == Overlap(3, 3, 3)


def test_pages_that_come_back_are_told_at_once() -> None:
    subscriber = Subscriber()
    subscriber.hear(in_l1(PROMPT), in_tier(Tier.L2, keys_of(PROMPT)))
    subscriber.hear(TierCleared(tier=Tier.L1, lane=0), TierCleared(tier=Tier.L2, lane=None))
    assert not subscriber.publication.state(0)
    subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT)))
    assert subscriber.overlap(PROMPT) == Overlap(0, 3, 3)


def test_little_is_kept_of_pages_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_publication, "_MAX_GONE", 2)
    subscriber = Subscriber()
    subscriber.hear(in_l1(PROMPT), in_l1([77] * 8))
    subscriber.hear(PagesRemoved(tier=Tier.L1, lane=0, group=0, keys=ShortKeys(keys_of(PROMPT))))
    assert len(subscriber.publication._contents) == 4
    assert not subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT)[:16]))
    assert subscriber.hear(in_tier(Tier.L2, keys_of(PROMPT)[16:]))


def test_lanes_hear_of_their_own_l1_and_of_what_they_share() -> None:
    subscriber = Subscriber(lane=1)
    subscriber.hear(in_l1(PROMPT), in_l1(PROMPT[:4], lane=1), in_tier(Tier.L2, keys_of(PROMPT)))
    assert subscriber.overlap(PROMPT) == Overlap(1, 3, 3)
    assert len(subscriber.publication.state(1)) == 2


def test_windows_say_what_they_are() -> None:
    subscriber = Subscriber(FULL_AND_WINDOW)
    keys = ShortKeys(keys_of(PROMPT)[16:])
    told = subscriber.publication.follow(
        KvNews(
            events=(in_l1(PROMPT), PagesStored(tier=Tier.L1, lane=0, group=1, keys=keys)),
            is_whole=True,
        )
    )
    full, window = [each.event for each in told]
    assert isinstance(full, BlockStored)
    assert isinstance(window, BlockStored)
    assert (full.kv_cache_spec_kind, full.kv_cache_spec_sliding_window) == ("full_attention", None)
    assert (window.kv_cache_spec_kind, window.kv_cache_spec_sliding_window) == ("sliding_window", 8)
    assert (window.group_idx, len(window.block_hashes)) == (1, 2)


def test_a_lost_event_is_noticed() -> None:
    subscriber = Subscriber()
    subscriber.hear(in_l1(PROMPT))
    with pytest.raises(AccountingError):
        subscriber.hear(in_l1(PROMPT))


def test_a_ring_has_the_latest_batches_or_says_that_it_has_not() -> None:
    ring = EventRing(3)
    assert _listed(ring.since(0)) == []
    assert [ring.add(bytes([number])) for number in range(5)] == [0, 1, 2, 3, 4]
    assert ring.since(1) is None
    assert _listed(ring.since(3)) == [(3, b"\x03"), (4, b"\x04")]
    assert _listed(ring.since(9)) == []


def test_the_wire_is_that_of_vllm() -> None:
    payload = encode_batch([AllBlocksCleared(), BlockRemoved(block_hashes=[7], medium="GPU")], 1, 2)
    assert msgspec.msgpack.decode(payload) == [
        1,
        [
            {"type": "AllBlocksCleared"},
            {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
        ],
        2,
    ]


def _last(keys: bytes) -> ShortKeys:
    return ShortKeys(keys[-16:])


def _listed(batches: Iterable[tuple[int, bytes]] | None) -> list[tuple[int, bytes]]:
    assert batches is not None
    return list(batches)
