"""Where rows find experts, on the device, and how many of them want each one.

Legend: L layers with experts, E logical experts, R ranks, X layers whose routes change, T tokens, K
experts per token.
"""

import torch
from torch import Tensor

from raydix.kernels.ops import ModelOps
from raydix.moe.placement import Routes


class LayerRoutes:
    """One layer's tables and counts: views of those of `DeviceRoutes`."""

    def __init__(self, table_ER: Tensor, counts_E: Tensor, demand_E: Tensor) -> None:
        self._table_ER = table_ER
        self._counts_E = counts_E
        self._demand_E = demand_E

    def physical_ids(self, ids_TK: Tensor, ops: ModelOps) -> Tensor:
        """The physical experts, int32, that rows with these logical ones go to; counts the rows.

        Rows take the replicas in turn, by their place in the step. -1 stays -1, uncounted.
        """
        return ops.route_experts(ids_TK, self._table_ER, self._counts_E, self._demand_E)


class DeviceRoutes:
    """Owns: a rank's tables of all layers, and its counts of rows, at addresses that never change.

    So a step that has been captured takes the routes that were put last, and goes on counting. All
    of it happens on the stream that runs the steps.
    """

    def __init__(self, routes: Routes, device: torch.device) -> None:
        self.table_LER = torch.from_numpy(routes.table_LER.copy()).to(device)
        self.counts_LE = torch.from_numpy(routes.counts_LE.copy()).to(device)
        self.demand_LE = torch.zeros_like(self.counts_LE)

    def layer(self, index: int) -> LayerRoutes:
        """The routes of the layer with this number among those that have experts."""
        return LayerRoutes(self.table_LER[index], self.counts_LE[index], self.demand_LE[index])

    def put(self, layers_X: Tensor, table_XER: Tensor, counts_XE: Tensor) -> None:
        """Route these layers' rows by these tables from the next step on; all on the device."""
        self.table_LER.index_copy_(0, layers_X, table_XER.to(torch.int32))
        self.counts_LE.index_copy_(0, layers_X, counts_XE.to(torch.int32))

    def take_demand(self) -> Tensor:
        """Rows by layer and logical expert since the last time, int32 [L, E]."""
        demand_LE = self.demand_LE.clone()
        self.demand_LE.zero_()
        return demand_LE
