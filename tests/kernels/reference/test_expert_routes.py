"""The twin of routes, against loops."""

import torch

from raydix.kernels.reference.expert_routes import route_experts

TABLE_ER = torch.tensor([[3, -1], [0, 5], [4, 4]], dtype=torch.int32)
COUNTS_E = torch.tensor([1, 2, 2], dtype=torch.int32)


def _zeros() -> torch.Tensor:
    return torch.zeros(3, dtype=torch.int32)


def test_rows_take_the_entries_of_a_route_in_turn() -> None:
    ids_TK = torch.tensor([[1, 0], [0, 1], [1, 2]])
    physical = route_experts(ids_TK, TABLE_ER, COUNTS_E, _zeros())
    assert physical.tolist() == [[0, 3], [3, 5], [0, 4]]
    assert physical.dtype == torch.int32


def test_loads_count_every_choice_and_add_up() -> None:
    demand_E = _zeros()
    for _ in range(2):
        route_experts(torch.tensor([[1, 0], [0, 1], [1, 2]]), TABLE_ER, COUNTS_E, demand_E)
    assert demand_E.tolist() == [4, 6, 2]


def test_what_goes_nowhere_is_not_counted() -> None:
    demand_E = _zeros()
    physical = route_experts(torch.tensor([[-1, -1], [2, -1]]), TABLE_ER, COUNTS_E, demand_E)
    assert physical.tolist() == [[-1, -1], [4, -1]]
    assert demand_E.tolist() == [0, 0, 1]


def test_no_rows_are_routed_nowhere() -> None:
    demand_E = _zeros()
    ids_TK = torch.empty(0, 2, dtype=torch.int64)
    assert route_experts(ids_TK, TABLE_ER, COUNTS_E, demand_E).shape == (0, 2)
    assert demand_E.tolist() == [0, 0, 0]
