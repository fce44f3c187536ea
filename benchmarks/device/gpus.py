"""The GPUs that a benchmark needs."""

import torch

from raydix.errors import ConfigError


def require_gpus(num_gpus: int, instead: str = "") -> None:
    """Raise ConfigError unless torch sees so many. `instead`: what to try without them."""
    found = torch.cuda.device_count()
    if found < num_gpus:
        raise ConfigError(
            f"{found} GPUs are here for torch {torch.__version__}; expected at least {num_gpus}. "
            + (instead or "Run this where torch sees them.")
        )
