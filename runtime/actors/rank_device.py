"""The device of a rank, and what the configuration asks of it."""

import torch

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import FP8_DTYPE

_FP8_CAPABILITY = (8, 9)
"""The compute capability from which on GPUs convert FP8."""


def open_device(config: EngineConfig, index: int) -> torch.device:
    """Open a rank's device. Raises ConfigError if it is not there, or lacks what is asked for."""
    if config.model.device == "cpu":
        return torch.device("cpu")
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"CUDA device {index} is asked for; this process sees {torch.cuda.device_count()} of "
            f"them."
        )
    torch.cuda.set_device(index)
    capability = torch.cuda.get_device_capability(index)
    check_kv_dtype(config, capability, torch.cuda.get_device_name(index))
    # Opens it, which otherwise the first tensor would.
    torch.empty(1, device="cuda")
    return torch.device("cuda", index)


def check_kv_dtype(config: EngineConfig, capability: tuple[int, int], gpu: str) -> None:
    """Raise ConfigError if a GPU of this capability and name cannot read what is to be cached."""
    if config.kv_dtype == FP8_DTYPE and capability < _FP8_CAPABILITY:
        raise ConfigError(
            f"cache.kv_dtype is fp8_e4m3; {gpu} has no FP8. Expected a GPU of compute capability "
            "8.9 or more, such as L4, H100. Set cache.kv_dtype to auto."
        )
