"""Which orders are under way, against a naive model."""

from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.storage.worker.lane import Lane


@given(limit=st.integers(1, 4), comes=st.lists(st.booleans(), max_size=60))
def test_orders_start_in_order_and_never_too_many_at_a_time(limit: int, comes: list[bool]) -> None:
    lane: Lane[int] = Lane(limit)
    num_ordered, started, num_ended = 0, list[int](), 0
    for is_order in comes:
        if is_order:
            if lane.admit(num_ordered):
                started.append(num_ordered)
            num_ordered += 1
        elif num_ended < len(started):
            num_ended += 1
            following = lane.replace_ended()
            if following is not None:
                started.append(following)

        assert started == list(range(len(started)))
        assert len(started) == min(num_ordered, num_ended + limit), "nobody waits without need"
