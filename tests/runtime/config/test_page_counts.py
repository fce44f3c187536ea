import pytest

from raydix.runtime.config.page_counts import pages_within


@pytest.mark.parametrize(
    ("num_bytes", "page_bytes", "most", "num_pages"),
    [(100, 10, 32, 10), (100, 10, 4, 4), (100, 30, 32, 3), (100, 101, 32, 1)],
)
def test_bytes_hold_whole_pages_and_one_at_least(
    num_bytes: int, page_bytes: int, most: int, num_pages: int
) -> None:
    assert pages_within(num_bytes, page_bytes, most) == num_pages
