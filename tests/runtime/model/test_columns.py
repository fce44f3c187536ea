import numpy as np
import torch

from raydix.runtime.model.columns import copy_to_device, pack_columns, packed_size, split_columns

COLUMNS = [np.arange(count, dtype=np.int64) + 10 * count for count in (3, 0, 4, 1)]


def test_columns_come_out_as_they_went_in() -> None:
    lengths = [len(column) for column in COLUMNS]
    packed = torch.from_numpy(pack_columns(COLUMNS))

    assert len(packed) == packed_size(lengths)
    assert [column.tolist() for column in split_columns(packed, lengths)] == [column.tolist() for column in COLUMNS]


def test_every_column_on_the_device_is_aligned_to_16_bytes() -> None:
    on_device = copy_to_device(COLUMNS, torch.device("cpu"))

    start = on_device[0].data_ptr()
    assert [(column.data_ptr() - start) % 16 for column in on_device] == [0] * len(COLUMNS)
    assert [column.tolist() for column in on_device] == [column.tolist() for column in COLUMNS]
