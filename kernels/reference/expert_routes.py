"""Plain PyTorch twin of the routes from logical to physical experts.

Legend: T tokens of the step, K experts per token, E logical experts, R entries of a route.
"""

import torch
from torch import Tensor


def route_experts(ids_TK: Tensor, table_ER: Tensor, counts_E: Tensor, demand_E: Tensor) -> Tensor:
    """Return the physical experts, int32 [T, K], and add each logical one's rows to `demand_E`.

    Row t takes entry t modulo `counts_E` of its expert's route. What names no expert, as -1 does,
    becomes -1 and is not counted.
    """
    ids_TK = ids_TK.long()
    is_sent_TK = (ids_TK >= 0) & (ids_TK < len(counts_E))
    ids_TK = ids_TK.masked_fill(~is_sent_TK, 0)
    demand_E.scatter_add_(0, ids_TK.flatten(), is_sent_TK.flatten().to(demand_E.dtype))

    rows_T = torch.arange(ids_TK.shape[0], device=ids_TK.device)
    entries_TK = rows_T[:, None] % counts_E[ids_TK]
    return table_ER[ids_TK, entries_TK].masked_fill(~is_sent_TK, -1)
