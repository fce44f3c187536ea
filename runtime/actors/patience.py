"""Waiting for others, in time in which this process itself was awake to hear them."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

_NUM_SLICES = 10
"""The slices of a wait; a slice in which this process was stopped or busy is not counted."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. Raises TimeoutError, and cancels it, if it takes longer.

    A stall of this process's own event loop does not count: whoever answered meanwhile is heard
    first.
    """
    doing = asyncio.ensure_future(work)
    slice_s = seconds / _NUM_SLICES
    num_slices = 0
    try:
        while num_slices < _NUM_SLICES:
            began_s = time.monotonic()
            await asyncio.wait({doing}, timeout=slice_s)
            if doing.done():
                return doing.result()

            was_awake = time.monotonic() - began_s < 2 * slice_s
            num_slices += was_awake
        raise TimeoutError(f"nothing came of it within {seconds:g} s")
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
