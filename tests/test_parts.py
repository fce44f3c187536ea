"""Ten parts that follow each other run every test once, and what is not marked always runs."""

from collections import Counter

import pytest

from tests.parts import NUM_PARTS

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.part
@pytest.mark.parametrize("seed", range(13))
def test_seeds(seed):
    pass

@pytest.mark.part
@pytest.mark.parametrize("family", "ab")
def test_families(family):
    pass

def test_always():
    pass
"""


TOGETHER = """
import pytest

pytestmark = pytest.mark.part(together=True)

@pytest.mark.parametrize("step", range(3))
def test_first(step):
    pass

def test_last():
    pass
"""


def drawn(pytester: pytest.Pytester, *options: str) -> set[str]:
    """The names of the tests that run."""
    result = pytester.inline_run("--collect-only", "-p", "tests.parts", *options)
    [finish] = result.getcalls("pytest_collection_finish")
    return {item.name for item in finish.session.items}


def test_ten_parts_in_a_row_run_each_case_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CASES)
    everything = drawn(pytester)
    assert len(everything) == 16
    assert drawn(pytester, "--part", "all") == everything

    first = 4711
    parts = [drawn(pytester, "--part", str(first + index)) for index in range(NUM_PARTS)]

    times = Counter(name for part in parts for name in part)
    assert times == Counter(everything) + Counter({"test_always": NUM_PARTS - 1})
    assert max(map(len, parts)) <= 4
    assert drawn(pytester, "--part", str(first + NUM_PARTS)) == parts[0]


def test_what_shares_something_dear_is_drawn_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TOGETHER)
    numbers = [len(drawn(pytester, "--part", str(number))) for number in range(NUM_PARTS)]
    assert sorted(numbers) == [0] * (NUM_PARTS - 1) + [4]
