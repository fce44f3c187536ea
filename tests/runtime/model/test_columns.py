import numpy as np
import torch

from raydix.runtime.model.columns import pack_columns, packed_size, split_columns

COLUMNS = [np.arange(count, dtype=np.int64) + 10 * count for count in (3, 0, 4, 1)]


def test_columns_come_out_as_they_went_in() -> None:
    lengths = [len(column) for column in COLUMNS]
    packed = torch.from_numpy(pack_columns(COLUMNS))

    assert len(packed) == packed_size(lengths)
    assert [column.tolist() for column in split_columns(packed, lengths)] == [
        column.tolist() for column in COLUMNS
    ]


def test_every_column_is_aligned_to_16_bytes() -> None:
    columns = split_columns(
        torch.from_numpy(pack_columns(COLUMNS)), [len(column) for column in COLUMNS]
    )

    assert [(column.data_ptr() - columns[0].data_ptr()) % 16 for column in columns] == [0] * len(
        COLUMNS
    )
