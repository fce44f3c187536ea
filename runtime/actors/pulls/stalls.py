"""Peers that stand still."""

import asyncio
from collections.abc import Callable

_LOOKS = 10
"""The times that progress is looked at within the patience: a look that comes late, as this process
was held up, counts for no more than one.
"""


async def wait_for_stall(progress: Callable[[], int | None], patience_s: float) -> None:
    """Return once a peer has done nothing that it should have for so long.

    `progress()`: how much it has done in all; None while it has nothing to do.
    """
    last: int | None = None
    num_still = 0
    while num_still < _LOOKS:
        await asyncio.sleep(patience_s / _LOOKS)
        done = progress()
        num_still = num_still + 1 if done is not None and done == last else 0
        last = done
