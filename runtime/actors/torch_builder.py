"""The torch model of a GPU actor, imported where it is built: torch takes seconds.

The processes that merely create GPU actors do not wait for it.
"""

import importlib
import logging
import pickle

from raydix.runtime.actors.gpu_model import LoadedGpuModel, RankPlace
from raydix.runtime.actors.kernel_build import KernelOrder, start_build
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.garbage import nothing_collected
from raydix.runtime.phases import phase

logger = logging.getLogger(__name__)


def build_torch_model(
    config: EngineConfig,
    place: RankPlace,
    checkpoint: bytes | None = None,
    kernels: bytes | None = None,
) -> LoadedGpuModel:
    """Load the configured checkpoint. `checkpoint`: its `CheckpointConfig`, pickled, if it is read.

    `kernels`: see `KernelOrder.packed`.

    Pickled because those who pass it on do without torch, and reading it again would import the
    library that reads configs, which takes seconds.
    """
    order = KernelOrder(
        config=config, checkpoint=checkpoint, device_index=place.device_index, packed=kernels
    )
    build = start_build(order)
    with phase(logger, "torch imported"), nothing_collected():
        from raydix.runtime.actors.torch_model import load_gpu_model

    read = None if checkpoint is None else pickle.loads(checkpoint)
    return load_gpu_model(config, place, checkpoint=read, build=build)


def import_torch_model() -> None:
    """Import what `build_torch_model` needs on a GPU. Opens no device."""
    from raydix.kernels.ops import import_gpu_ops

    importlib.import_module("raydix.runtime.actors.torch_model")
    import_gpu_ops()
