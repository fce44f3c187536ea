import argparse

import pytest

from benchmarks.command_line import count


def test_a_count_is_at_least_one() -> None:
    assert count("12") == 12


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "many", ""])
def test_no_other_count_is_taken(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no number of at least 1"):
        count(text)
