"""Which version of a model is asked anew while one replaces another."""

import random
from dataclasses import replace

from raydix.runtime.api.versions import Versions, next_version
from tests.runtime.api.small_client import LIMITS


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


class Linked:
    """A client of a version with links to these engines."""

    def __init__(self, limits, *engines):
        self.limits = limits
        self.engines = set(engines)

    @property
    def num_taking(self):
        return len(self.engines)

    @property
    def is_closed(self):
        return not self.engines

    def has_link(self, engine):
        return engine in self.engines


async def test_engines_that_are_gone_are_forgotten_and_those_with_a_link_are_not() -> None:
    versions = Versions()
    client = Linked(LIMITS)
    versions.add(client)
    for number in range(1000):
        client.engines = {f"e{number}"}
        versions.note(f"e{number}", LIMITS)
        # Whoever asks for the list of engines may miss one that a link shows to be there.
        await versions.retire([], number)
        assert versions.engines == {f"e{number}"}


async def test_what_is_asked_anew_never_goes_back_as_engines_are_lost_and_found() -> None:
    former, later = Linked(LIMITS, "a"), Linked(replace(LIMITS, fingerprint="later"), "b")
    versions = Versions()
    for client, name in ((former, "a"), (later, "b")):
        versions.add(client)
        versions.note(name, client.limits)
    assert versions.chosen(["a", "b"]) is later

    # The former version's only engine is gone, in every respect, and comes back.
    former.engines = set()
    await versions.retire(["b"], 0.0)
    assert versions.engines == {"b"}
    assert versions.chosen(["b"]) is later
    assert versions.chosen(["a", "b"]) is later, "it is listed, and nobody has a link yet"
    former.engines = {"a"}
    versions.note("a", LIMITS)
    assert versions.chosen(["a", "b"]) is later
