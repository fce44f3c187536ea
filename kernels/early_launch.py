# mypy: disable-error-code="no-untyped-def"
"""Programmatic dependent launch: a kernel is on the device before the one ahead of it has ended.

Every kernel of such a chain waits for the one ahead before it reads or writes what others write, so
that a kernel's end means the end of all before it. Before that it may read nothing but weights.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_FIRST_CAPABILITY = (9, 0)


def early_launch(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch whose kernel has the parameter EARLY, a constexpr."""
    is_early = _knows_early_launch(device)
    return {"EARLY": is_early, "launch_pdl": is_early}


@cache
def _knows_early_launch(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Let the next kernel come, and wait until the one ahead has ended: a small kernel's first
    statement."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
