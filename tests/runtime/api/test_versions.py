"""Which version of a model is asked anew while one replaces another."""

import random

from raydix.runtime.api.versions import next_version


def test_a_later_version_follows_once_it_has_as_many_engines() -> None:
    assert next_version([4, 0], None) == 0
    assert next_version([4, 1], 0) == 0
    assert next_version([3, 1], 0) == 0
    assert next_version([2, 2], 0) == 1
    assert next_version([1, 1], 0) == 1


def test_nobody_goes_back_while_the_later_version_has_an_engine() -> None:
    assert next_version([2, 1], 1) == 1
    assert next_version([2, 0], 1) == 0, "its engines have all ended"
    assert next_version([0, 0], 1) == 1, "what waits for it goes on waiting"
    assert next_version([], None) is None
    assert next_version([0], None) is None


def test_an_upgrade_of_any_size_goes_forward_and_always_asks_who_is_there() -> None:
    rng = random.Random(3)
    for _ in range(500):
        num_nodes = rng.randrange(1, 6)
        old, new, chosen = num_nodes, 0, 0
        while old:
            # One comes, then one goes; a link may be lost in between.
            if new < num_nodes and (new <= num_nodes - old or rng.random() < 0.3):
                new += 1
            else:
                old -= 1
            seen = [max(0, old - (rng.random() < 0.2)), max(0, new - (rng.random() < 0.2))]
            after = next_version(seen, chosen)
            assert after is not None
            assert seen[after] or not any(seen)
            if after != chosen and seen[chosen]:
                assert after > chosen, "nobody goes back to what is being replaced"
            chosen = after
        assert next_version([old, num_nodes], chosen) == 1
