"""How many programs a device runs at a time."""

from functools import cache

import torch


@cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
