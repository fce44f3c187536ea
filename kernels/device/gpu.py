"""What kernels ask of the GPU for which they are launched, or only compiled.

Tensors on torch's meta device have shapes alone. Launchers that are given such compile for the GPU
of Triton's active driver, which may be one that only says what GPU is meant: see `VariantTrace`.
"""

from functools import cache

import torch
from triton.runtime import driver

META = torch.device("meta")


def capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a device that kernels are compiled for; None if it has none."""
    if device.type == "cuda":
        return _capability(device)
    if device.type == "meta":
        return divmod(int(driver.active.get_current_target().arch), 10)
    return None


def num_sms(device: torch.device) -> int:
    """How many programs a GPU runs at a time: its multiprocessors."""
    if device.type == "meta":
        return int(driver.active.utils.get_device_properties(0)["multiprocessor_count"])
    return _num_sms(device)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def _num_sms(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
