"""L2s of models share a node's memory: within its bound, each with its floor, or by name."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from raydix.runtime.actors.supervision.node_share import (
    KeptL2,
    L2Claim,
    L2Wish,
    bytes_left,
    choose_to_end,
    too_little,
)

MIB = 1 << 20


def wish(size: int, floor: int | None = None, total: int | None = None) -> L2Wish:
    floor_bytes = (size if floor is None else floor) * MIB
    total_bytes = None if total is None else total * MIB
    return L2Wish(size_bytes=size * MIB, floor_bytes=floor_bytes, total_bytes=total_bytes)


def claim(name: str, size: int, total: int | None = None) -> L2Claim:
    return L2Claim(
        node="n",
        name=name,
        model_path=f"models/{name}",
        size_bytes=size * MIB,
        total_bytes=None if total is None else total * MIB,
    )


def kept(name: str, size: int, ends_in_s: float) -> KeptL2:
    return KeptL2(name=name, size_bytes=size * MIB, ends_in_s=ends_in_s)


def test_without_a_bound_each_gets_what_it_wants() -> None:
    assert bytes_left(wish(60), [claim("a", 500), claim("b", 500)]) == 60 * MIB


def test_whoever_comes_later_gets_what_is_left() -> None:
    assert bytes_left(wish(60, total=100), [claim("a", 30)]) == 60 * MIB
    assert bytes_left(wish(60, total=100), [claim("a", 60)]) == 40 * MIB
    assert bytes_left(wish(60, total=100), [claim("a", 60), claim("b", 60)]) == 0


def test_the_least_bound_that_anybody_was_promised_counts() -> None:
    others = [claim("a", 30, total=80), claim("b", 20)]
    assert bytes_left(wish(60, total=100), others) == 30 * MIB
    assert bytes_left(wish(60), others) == 30 * MIB


def test_those_that_end_soonest_make_room_and_no_more_of_them_than_it_takes() -> None:
    several = [kept("late", 10, 500.0), kept("soon", 10, 5.0), kept("next", 10, 50.0)]
    assert [each.name for each in choose_to_end(several, 15 * MIB)] == ["soon", "next"]
    assert [each.name for each in choose_to_end(several, 0)] == []
    assert len(choose_to_end(several, 1000 * MIB)) == 3


def test_a_refusal_names_who_has_the_rest_and_what_to_do() -> None:
    told = too_little(wish(60, floor=20, total=100), [claim("a", 60), claim("b", 30)])
    for part in ("leaves 10MiB", "needs 20MiB", "of 100MiB", "a of models/a 60MiB", "raydix stop"):
        assert part in told


sizes = st.integers(1, 100)


@given(st.lists(st.tuples(sizes, sizes, st.none() | st.integers(1, 300)), max_size=8))
def test_no_bound_is_exceeded_and_no_floor_undercut_whoever_comes(
    wishes: list[tuple[int, int, int | None]],
) -> None:
    claims: list[L2Claim] = []
    for number, (size, floor, total) in enumerate(wishes):
        wanted = wish(size, min(size, floor), total)
        left = bytes_left(wanted, claims)
        assert 0 <= left <= wanted.size_bytes
        if left < wanted.floor_bytes:
            continue
        own = replace(claim(f"l2-{number}", size, total), size_bytes=left)
        claims.append(own)
        bounds = [each.total_bytes for each in claims if each.total_bytes is not None]
        # What was there before a bound was set stays; nothing is added beyond it.
        assert not bounds or sum(each.size_bytes for each in claims) <= min(bounds)
