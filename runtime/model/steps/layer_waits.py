"""What the layers of a step wait for."""

from collections.abc import Callable

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.tiers.transfers import WaitLayer


def layer_waiter(plan: StepPlan, wait_layer: WaitLayer) -> Callable[[int], None] | None:
    """Waits until the loads of a plan's rows have brought a layer; None: there are no loads."""
    transfer_ids = sorted({int(transfer_id) for transfer_id in plan.row_loads if transfer_id >= 0})
    if not transfer_ids:
        return None

    def wait(layer: int) -> None:
        for transfer_id in transfer_ids:
            wait_layer(transfer_id, layer)

    return wait
