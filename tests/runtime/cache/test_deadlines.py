"""Deadlines come in their order, each once, and take no room once they are forgotten."""

import random

from raydix.runtime.cache.deadlines import Deadlines


def test_names_come_when_they_are_due_as_a_dict_says() -> None:
    rng = random.Random(0)
    deadlines, times_s = Deadlines[int](), dict[int, float]()
    for now_s in range(3000):
        name = rng.randrange(40)
        if rng.random() < 0.8:
            times_s[name] = now_s + rng.choice([-1.0, 0.0, 3.0, 1000.0])
            deadlines.set(name, times_s[name])
        else:
            times_s.pop(name, None)
            deadlines.forget(name)
        deadlines.check()
        assert (deadlines.names, deadlines.next_s) == (
            times_s.keys(),
            min(times_s.values(), default=None),
        )

        if rng.random() < 0.2:
            taken = []
            while (due := deadlines.take_due(now_s)) is not None:
                taken.append((times_s.pop(due), due))
            assert taken == sorted(taken)
            assert all(time_s > now_s for time_s in times_s.values())


def test_a_hundred_thousand_times_far_ahead_take_no_room_once_they_are_others() -> None:
    deadlines = Deadlines[int]()
    for turn in range(100_000):
        deadlines.set(0, 1e9 + turn)
        deadlines.set(1, 1e9 - turn)
        deadlines.set(2 + turn, 1e9)
        deadlines.forget(2 + turn)
    deadlines.check()
    assert len(deadlines) == 2
