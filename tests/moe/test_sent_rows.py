import torch

from raydix.moe.dispatch.protocol import DispatchSizes
from raydix.moe.sent_rows import SentRows


def slices(num_rows: int, size: int, is_padding: torch.Tensor | None = None) -> list[SentRows]:
    """Equal slices of a lane's rows, as its ranks have them."""
    each = -(-num_rows // size)
    sizes = DispatchSizes((each,) * size)
    return [
        SentRows(first=rank * each, num_rows=each, sizes=sizes, is_padding_T=is_padding)
        for rank in range(size)
    ]


def test_slices_put_together_are_the_lanes_rows() -> None:
    x = torch.arange(10.0).view(5, 2)

    parts = [sent.among_lane(sent.own(x), 5) for sent in slices(5, 4)]

    assert torch.equal(torch.stack(parts).sum(0), x)


def test_rows_past_the_lanes_last_go_nowhere() -> None:
    ids = torch.arange(4).view(2, 2)

    found = [sent.without_padding(ids, 5).tolist() for sent in slices(5, 4)]

    assert found == [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [-1, -1]], [[-1, -1], [-1, -1]]]


def test_padding_within_a_lane_goes_nowhere() -> None:
    ids = torch.arange(6).view(3, 2)
    is_padding = torch.tensor([False, True, False, False, True])

    found = [sent.without_padding(ids, 5).tolist() for sent in slices(5, 2, is_padding)]

    assert found == [[[0, 1], [-1, -1], [4, 5]], [[0, 1], [-1, -1], [-1, -1]]]


def test_a_rank_that_sends_nothing_adds_zeros() -> None:
    sent = SentRows(first=0, num_rows=0, sizes=DispatchSizes((3, 0)))
    x = torch.ones(1, 2)

    assert sent.own(x).shape == (0, 2)
    assert sent.without_padding(torch.empty(0, 2, dtype=torch.int64), 1).shape == (0, 2)
    assert torch.equal(sent.among_lane(sent.own(x), 1), torch.zeros(1, 2))
