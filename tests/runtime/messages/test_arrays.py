import numpy as np
import pytest

from raydix.ids import BatchId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.codec import decode, encode
from raydix.runtime.messages.host import CancelBatch

LAST = 2**31 - 1


@pytest.mark.parametrize(
    "values", [[LAST + 1], np.array([0, LAST + 1]), np.array([-LAST - 2], dtype=np.int64)]
)
def test_what_does_not_fit_is_refused_and_never_wraps(values: list[int]) -> None:
    with pytest.raises(OverflowError):
        int32_array(values)


def test_what_fits_is_copied_whatever_its_width() -> None:
    wide = np.array([-LAST - 1, 0, LAST])
    column = int32_array(wide)
    wide[:] = 7
    assert column.tolist() == [-LAST - 1, 0, LAST]
    assert not column.flags.writeable


def test_batch_ids_pass_any_column_width() -> None:
    order = CancelBatch(batch_id=BatchId(2**40))
    assert decode(encode(order)) == order
