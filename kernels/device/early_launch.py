# mypy: disable-error-code="no-untyped-def"
"""Programmatic dependent launch: a kernel is on the device before the one ahead of it has ended.

Every kernel of such a chain waits for the one ahead before it reads or writes what others write, so
that a kernel's end means the end of all before it. Before that it may read weights, what was there
when the layers of the step began, as kernels of other libraries, which come before, end first, and
what was written ahead of a product since: products wait before they let the next kernel come.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from raydix.kernels.device.gpu import capability

_FIRST_CAPABILITY = (9, 0)


def early_launch(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch whose kernel has the parameter EARLY, a constexpr."""
    known = capability(device)
    is_early = known is not None and known >= _FIRST_CAPABILITY
    return {"EARLY": is_early, "launch_pdl": is_early}


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Let the next kernel come, and wait until the one ahead has ended: a small kernel's first
    statement."""
    let_next_come(EARLY)
    wait_for_ahead(EARLY)


@triton.jit
def let_next_come(EARLY: tl.constexpr):
    """Say that the next kernel may be launched as soon as all programs have said so."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_ahead(EARLY: tl.constexpr):
    """Wait until the kernel ahead has ended.

    What a step finds when its layers begin (positions, cells, tables, contexts) is older than any
    kernel ahead, and may be read before.
    """
    if EARLY:
        gdc_wait()
