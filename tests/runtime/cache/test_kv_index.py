import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.kv_index import KvIndex
from raydix.runtime.messages.kv_events import (
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
    TierCleared,
)

_L1 = (Tier.L1, 0)
_L2 = (Tier.L2, None)


def _keys(*names: int) -> ShortKeys:
    return ShortKeys(b"".join(name.to_bytes(16, "big") for name in names))


def _stored(*names: int, tier: Tier = Tier.L1, lane: int | None = 0, group: int = 0) -> PagesStored:
    return PagesStored(tier=tier, lane=lane, group=group, keys=_keys(*names))


def _removed(*names: int) -> PagesRemoved:
    return PagesRemoved(tier=Tier.L1, lane=0, group=0, keys=_keys(*names))


def _index(*events: PagesStored | PagesRemoved | TierCleared) -> KvIndex:
    index = KvIndex()
    for event in events:
        index.follow(event)
    return index


def test_a_chain_is_found_up_to_its_first_gap() -> None:
    index = _index(_stored(1, 2, 3, 4), _removed(3))

    assert index.count_leading(_L1, 0, _keys(1, 2, 3, 4)) == 2
    assert index.count_leading(_L1, 0, _keys(1, 2, 3, 4), 3) == 1
    assert index.count_leading(_L1, 0, _keys(9)) == 0
    assert index.has(_L1, 0, _keys(4))
    assert not index.has(_L1, 0, _keys(3))


def test_tiers_lanes_and_groups_are_told_apart() -> None:
    index = _index(
        _stored(1), _stored(1, lane=1), _stored(1, group=1), _stored(1, 2, tier=Tier.L2, lane=None)
    )

    index.follow(TierCleared(tier=Tier.L1, lane=0))

    assert index.groups(_L1) == {}
    assert index.groups((Tier.L1, 1)) == {0: {_keys(1)}}
    assert index.keys(_L2, 0) == {_keys(1), _keys(2)}


@pytest.mark.parametrize(
    "event", [_stored(1), _stored(2, 1), _stored(3, 3), _removed(2), _removed(1, 2), _removed(1, 1)]
)
def test_a_page_that_comes_or_goes_twice_is_told(event: PagesStored | PagesRemoved) -> None:
    index = _index(_stored(1))

    with pytest.raises(AccountingError, match="was lost, or came twice"):
        index.follow(event)
