import pytest

from raydix.runtime.model.decode_graphs import decode_buckets


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 64, 100, 300])
def test_every_batch_has_a_bucket_that_is_at_most_twice_as_large(max_rows: int) -> None:
    buckets = decode_buckets(max_rows)

    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        assert next(size for size in buckets if size >= rows) <= max(2 * rows - 1, 1)
