from dataclasses import replace

from raydix.ids import L3_SOURCE, SourceId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.scheduler.sources.mirror import Mirror
from raydix.runtime.scheduler.sources.origins import Offer, Origin, Origins, choose_offer

STORAGE = Origin(L3_SOURCE, "l3", PageSource.L3, None)
KEY = bytes(MIRROR_KEY_BYTES)


def peer(source: int) -> Origin:
    return Origin(SourceId(source), "node", PageSource.PEER, Mirror(1))


def test_the_offer_that_saves_most_is_chosen_though_it_takes_longer() -> None:
    hope = Offer(origin=STORAGE, num_pages=9, seconds=0.5, compute_s=0.9)
    near = Offer(origin=peer(2), num_pages=4, seconds=0.1, compute_s=0.4)

    assert choose_offer([near, hope]) is hope
    assert choose_offer([replace(hope, seconds=0.7), near]) is near


def test_nothing_is_fetched_that_is_computed_sooner() -> None:
    assert choose_offer([Offer(origin=peer(2), num_pages=4, seconds=0.5, compute_s=0.4)]) is None
    assert choose_offer([]) is None


def test_of_equal_offers_the_nearest_is_chosen_and_then_the_first() -> None:
    second, first = peer(3), peer(2)
    offers = [
        Offer(origin=origin, num_pages=4, seconds=0.1, compute_s=0.4)
        for origin in (STORAGE, second, first)
    ]

    best = choose_offer(offers)

    assert best is not None
    assert best.origin is first


def test_keys_are_kept_by_node_and_go_with_it() -> None:
    origins = Origins(1)
    for source in (2, 3):
        origins.add(PeerFound(source=SourceId(source), name=f"node {source}"))
    origins.follow(MirrorUpdate(source=SourceId(3), ready=KEY))

    assert [len(each.keys or ()) for each in origins.peers] == [0, 1]
    assert origins.remove(PeerGone(source=SourceId(3))) == [{KEY}]
    # It may have been told before the node was lost.
    origins.follow(MirrorUpdate(source=SourceId(3), ready=KEY))
    assert origins.find(SourceId(3)) is None
    assert origins.figures() == {"peers": 1, "peer_known_pages": 0}
