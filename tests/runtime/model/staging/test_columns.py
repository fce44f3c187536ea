import numpy as np
import pytest
import torch

from raydix.runtime.model.staging.columns import FLOAT64, INT32, INT64, ColumnForm, Columns, Layout

COLUMNS: Columns = {
    "three": np.arange(3) + 30,
    "none": np.empty(0, dtype=np.int64),
    "fractions": np.array([0.5, -1e300, 0.1]),
    "table": np.arange(15, dtype=np.int32).reshape(5, 3),
    "turned": np.arange(6.0).reshape(3, 2).T,
    "one": np.array([-(1 << 40)]),
}


def through(columns: Columns, layout: Layout) -> dict[str, torch.Tensor]:
    packed = torch.from_numpy(layout.pack(columns))
    assert len(packed) == layout.size
    return layout.split(packed)


def test_columns_come_out_as_they_went_in() -> None:
    arrived = through(COLUMNS, Layout.of(COLUMNS))

    assert arrived.keys() == COLUMNS.keys()
    for name, column in COLUMNS.items():
        np.testing.assert_array_equal(arrived[name].numpy(), column, strict=True)


def test_every_column_is_aligned_to_16_bytes() -> None:
    layout = Layout.of(COLUMNS)
    packed = torch.from_numpy(layout.pack(COLUMNS))

    columns = layout.split(packed).values()

    assert [(column.data_ptr() - packed.data_ptr()) % 16 for column in columns] == [0] * len(
        COLUMNS
    )


def test_a_column_is_filled_up_with_zeros_to_its_length() -> None:
    layout = Layout(
        {
            "table": ColumnForm(INT32, (3, 2)),
            "fractions": ColumnForm(FLOAT64, (2,)),
            "numbers": ColumnForm(INT64, (3,)),
        }
    )

    arrived = through(
        {
            "numbers": np.array([7]),
            "fractions": np.array([0.5]),
            "table": np.array([[1, 2]], dtype=np.int32),
        },
        layout,
    )

    assert {name: column.tolist() for name, column in arrived.items()} == {
        "table": [[1, 2], [0, 0], [0, 0]],
        "fractions": [0.5, 0.0],
        "numbers": [7, 0, 0],
    }


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"numbers": np.arange(2), "others": np.arange(2)},
        {"others": np.arange(2)},
        {"numbers": np.arange(3)},
        {"numbers": np.zeros(2)},
        {"numbers": np.zeros((2, 1), dtype=np.int64)},
    ],
    ids=["missing", "too many", "another name", "too long", "another type", "another shape"],
)
def test_columns_that_the_layout_does_not_expect_are_refused(columns: Columns) -> None:
    with pytest.raises(ValueError, match="expected"):
        Layout({"numbers": ColumnForm(INT64, (2,))}).pack(columns)
