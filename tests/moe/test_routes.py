import numpy as np
import torch

from raydix.moe.placement import EMPTY, Routes
from raydix.moe.routes import DeviceRoutes

TABLE = np.array([[[4, EMPTY], [5, 1]], [[0, 3], [2, EMPTY]]], dtype=np.int32)
COUNTS = np.array([[1, 2], [2, 1]], dtype=np.int32)


def test_rows_take_the_replicas_of_their_experts_in_turn() -> None:
    routes = DeviceRoutes(Routes(TABLE, COUNTS), torch.device("cpu"))
    ids = torch.tensor([[0, 1], [1, 0], [1, 0]])

    assert routes.layer(0).physical_ids(ids).tolist() == [[4, 5], [1, 4], [5, 4]]
    assert routes.layer(1).physical_ids(ids).tolist() == [[0, 2], [2, 3], [2, 0]]


def test_layers_read_what_is_put_into_the_tables() -> None:
    routes = DeviceRoutes(Routes(TABLE, COUNTS), torch.device("cpu"))
    layer = routes.layer(1)

    routes.table_LER[1, 1, 0] = 7

    assert layer.physical_ids(torch.tensor([[1]])).tolist() == [[7]]
