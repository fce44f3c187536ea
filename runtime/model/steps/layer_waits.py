"""What the layers of a step wait for."""

from collections.abc import Callable

import numpy as np

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.tiers.transfers import WaitLayer


def layer_waiter(plan: StepPlan, wait_layer: WaitLayer) -> Callable[[int], None] | None:
    """Waits until the loads of a plan's rows have brought a layer; None: there are no loads."""
    if plan.row_loads.max(initial=-1) < 0:
        return None
    transfer_ids = np.unique(plan.row_loads[plan.row_loads >= 0]).tolist()

    def wait(layer: int) -> None:
        for transfer_id in transfer_ids:
            wait_layer(transfer_id, layer)

    return wait
