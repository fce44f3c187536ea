"""Where rows find experts, on the device.

Legend: L layers, E logical experts, R ranks, T tokens, K experts per token.
"""

import torch
from torch import Tensor

from raydix.moe.placement import Routes


class LayerRoutes:
    """One layer's tables: views of those of `DeviceRoutes`."""

    def __init__(self, table_ER: Tensor, counts_E: Tensor) -> None:
        self.table_ER = table_ER
        self.counts_E = counts_E

    def physical_ids(self, ids_TK: Tensor) -> Tensor:
        """The physical experts, int32, that rows with these logical ones go to.

        Rows take the replicas in turn, by their place in the step.
        """
        ids_TK = ids_TK.long()
        rows_T = torch.arange(ids_TK.shape[0], dtype=torch.int32, device=ids_TK.device)
        entries_TK = rows_T[:, None] % self.counts_E[ids_TK]
        return self.table_ER[ids_TK, entries_TK]


class DeviceRoutes:
    """Owns: a rank's tables of all layers with experts, at addresses that never change.

    So a step that has been captured takes the routes that were put last.
    """

    def __init__(self, routes: Routes, device: torch.device) -> None:
        self.table_LER = torch.from_numpy(routes.table_LER.copy()).to(device)
        self.counts_LE = torch.from_numpy(routes.counts_LE.copy()).to(device)

    def layer(self, index: int) -> LayerRoutes:
        """Those of the layer with experts that has this number among them."""
        return LayerRoutes(self.table_LER[index], self.counts_LE[index])
