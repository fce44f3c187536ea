import numpy as np
import torch

from raydix.kernels.ops import ReferenceOps
from raydix.moe.placement import EMPTY, Routes
from raydix.moe.routes import DeviceRoutes

OPS = ReferenceOps()
TABLE = np.array([[[4, EMPTY], [5, 1]], [[0, 3], [2, EMPTY]]], dtype=np.int32)
COUNTS = np.array([[1, 2], [2, 1]], dtype=np.int32)


def _routes() -> DeviceRoutes:
    return DeviceRoutes(Routes(TABLE, COUNTS), torch.device("cpu"))


def test_rows_take_the_replicas_of_their_experts_in_turn() -> None:
    routes = _routes()
    ids = torch.tensor([[0, 1], [1, 0], [1, 0]])

    assert routes.layer(0).physical_ids(ids, OPS).tolist() == [[4, 5], [1, 4], [5, 4]]
    assert routes.layer(1).physical_ids(ids, OPS).tolist() == [[0, 2], [2, 3], [2, 0]]


def test_layers_go_by_what_was_put_last_and_others_stay() -> None:
    routes = _routes()
    first, second = routes.layer(0), routes.layer(1)

    routes.put(torch.tensor([1]), torch.tensor([[[7, -1], [8, 9]]]), torch.tensor([[1, 2]]))

    assert second.physical_ids(torch.tensor([[0], [1]]), OPS).tolist() == [[7], [9]]
    assert first.physical_ids(torch.tensor([[0], [1]]), OPS).tolist() == [[4], [1]]


def test_loads_are_per_layer_and_taken_once() -> None:
    routes = _routes()
    first, second = routes.layer(0), routes.layer(1)
    for _ in range(3):
        first.physical_ids(torch.tensor([[0, 1], [-1, -1]]), OPS)
    second.physical_ids(torch.tensor([[1], [1]]), OPS)

    assert routes.take_demand().tolist() == [[3, 3], [0, 2]]
    assert routes.take_demand().tolist() == [[0, 0], [0, 0]]
    first.physical_ids(torch.tensor([[1]]), OPS)
    assert routes.take_demand().tolist() == [[0, 1], [0, 0]]
