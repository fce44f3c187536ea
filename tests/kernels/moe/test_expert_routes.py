import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.moe.expert_routes import route_experts
from raydix.kernels.reference import expert_routes as reference


def _tables(num_experts: int, num_entries: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    table_ER = torch.randint(0, 500, (num_experts, num_entries), dtype=torch.int32)
    counts_E = torch.randint(1, num_entries + 1, (num_experts,), dtype=torch.int32)
    return table_ER.to(device), counts_E.to(device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(1, 8, 128, 4), (300, 8, 256, 8), (5, 2, 3, 1), (0, 2, 8, 2)])
def test_routes_and_loads_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    num_tokens, choices, num_experts, num_entries = shape
    ids_TK = torch.randint(-1, num_experts + 2, (num_tokens, choices), dtype=dtype).to(device)
    table_ER, counts_E = _tables(num_experts, num_entries, device)
    demand_E = torch.arange(num_experts, dtype=torch.int32, device=device)
    expected_loads_E = demand_E.clone()

    physical_TK = route_experts(ids_TK, table_ER, counts_E, demand_E)

    expected_TK = reference.route_experts(ids_TK, table_ER, counts_E, expected_loads_E)
    assert torch.equal(physical_TK, expected_TK)
    assert torch.equal(demand_E, expected_loads_E)


@pytest.mark.gpu
def test_a_captured_launch_takes_the_tables_that_were_put_last() -> None:
    device = torch.device("cuda")
    ids_TK = torch.zeros(4, 2, dtype=torch.int32, device=device)
    table_ER, counts_E = _tables(8, 2, device)
    demand_E = torch.zeros(8, dtype=torch.int32, device=device)
    route_experts(ids_TK, table_ER, counts_E, demand_E)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        physical_TK = route_experts(ids_TK, table_ER, counts_E, demand_E)

    table_ER.fill_(77)
    ids_TK[3] = -1
    graph.replay()

    assert physical_TK.tolist() == [[77, 77]] * 3 + [[-1, -1]]
    assert demand_E.tolist() == [8 + 6, *[0] * 7]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids_TK": torch.zeros(2, 4, dtype=torch.int16)},
        {"ids_TK": torch.zeros(4, 2, dtype=torch.int32).T},
        {"counts_E": torch.zeros(7, dtype=torch.int32)},
        {"demand_E": torch.zeros(8, dtype=torch.int64)},
        {"table_ER": torch.zeros(8, 4, dtype=torch.int32)[:, ::2]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_bad_inputs_are_refused(wrong: dict[str, torch.Tensor]) -> None:
    right = {
        "ids_TK": torch.zeros(2, 4, dtype=torch.int32),
        "table_ER": torch.zeros(8, 2, dtype=torch.int32),
        "counts_E": torch.ones(8, dtype=torch.int32),
        "demand_E": torch.zeros(8, dtype=torch.int32),
    }
    with pytest.raises(ValueError, match="expected"):
        route_experts(**{**right, **wrong})
