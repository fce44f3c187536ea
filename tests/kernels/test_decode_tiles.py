import pytest

pytest.importorskip("triton")

from raydix.kernels.decode_tiles import MAX_SPLITS, check_num_splits, choose_num_splits


@pytest.mark.parametrize(
    ("figures", "num_splits"),
    [
        ((64, 8, 8192), 1),
        ((1, 8, 16384), 32),
        ((1, 4, 384), 4),
        ((1, 1, 1), 1),
        ((512, 8, 131_072), 16),
        ((1, 1, 10**7), MAX_SPLITS),
    ],
)
def test_splits_fill_the_device_and_bound_the_longest_row(
    figures: tuple[int, int, int], num_splits: int
) -> None:
    assert choose_num_splits(*figures, num_sms=132) == num_splits


@pytest.mark.parametrize("num_splits", [0, MAX_SPLITS + 1])
def test_an_impossible_number_of_splits_is_refused(num_splits: int) -> None:
    with pytest.raises(ValueError, match="num_splits"):
        check_num_splits(num_splits)
