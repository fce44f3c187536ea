"""A process that compiles a rank's kernels while the rank loads its weights.

It needs torch and the shapes of the model alone: see `model_variants`.
"""

import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.errors import RaydixError
from raydix.runtime.actors.process import end_with_parent
from raydix.runtime.config.engine import EngineConfig

if TYPE_CHECKING:
    # Torch and Triton, which whoever starts the process does without.
    from raydix.kernels.compiling.processes import Compiled
    from raydix.kernels.compiling.variants import TargetGpu, Variant
    from raydix.runtime.model.checkpoint.checkpoint_config import CheckpointConfig

logger = logging.getLogger(__name__)

_MAX_PROCESSES = 16
"""More would each take the memory of a compiler for one or two kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOrder:
    """A model whose kernels are compiled, and the GPU for which."""

    config: EngineConfig
    checkpoint: bytes | None
    """The model's `CheckpointConfig`, pickled, if it has been read."""
    device_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltKernels:
    """All variants that a rank launches, which Triton's cache on this host now has."""

    variants: "tuple[Variant, ...]"
    compiled: "tuple[Compiled, ...]"
    found_s: float
    """The time that it took to find out which they are."""
    compiled_s: float

    @property
    def num_new(self) -> int:
        """The number of variants that had to be compiled."""
        return sum(not each.was_there for each in self.compiled)


class KernelBuild:
    """Owns: the process that compiles, until `result`, and with it at the latest it ends."""

    def __init__(self, order: KernelOrder) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import answer; answer({os.getpid()})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # A terminal's Ctrl-C is for us alone, from the first import there on.
            process_group=0,
        )
        assert self._process.stdin is not None
        pickle.dump(order, self._process.stdin)
        self._process.stdin.close()

    def result(self) -> BuiltKernels | None:
        """Wait for the kernels. None, with a line in the log, if not all of them are there."""
        assert self._process.stdout is not None
        told = self._process.stdout.read()
        code = self._process.wait()
        self._process.stdout.close()
        answered = pickle.loads(told) if code == 0 else f"it ended with exit code {code}"
        if isinstance(answered, BuiltKernels):
            logger.info("%s", describe(answered))
            return answered
        logger.warning(
            "kernels are compiled one by one as steps are tried, as the process that does so "
            "ahead failed: %s",
            answered,
        )
        return None


def start_build(order: KernelOrder) -> KernelBuild | None:
    """Begin to compile; None where no kernels are launched."""
    if order.config.model.device != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return KernelBuild(order)


def describe(built: BuiltKernels) -> str:
    """How many kernels there are and which were compiled, the slowest first, with seconds."""
    new = sorted(
        (each for each in built.compiled if not each.was_there), key=lambda each: -each.seconds
    )
    named = ", ".join(
        f"{each.kernel.removeprefix('raydix.kernels.')} {each.seconds:.2f} s" for each in new
    )
    return (
        f"{len(built.variants)} variants of kernels, found in {built.found_s:.2f} s; {len(new)} "
        f"compiled in {built.compiled_s:.2f} s{': ' if new else ''}{named}"
    )


def answer(asker: int) -> None:
    """Carry out the order on stdin, and write what came of it to stdout.

    asker: the process that waits for it, our parent. Once that has ended nobody does.
    """
    end_with_parent()
    if os.getppid() != asker:
        # It ended while we imported all this, too early for the kernel to end us.
        return
    order: KernelOrder = pickle.load(sys.stdin.buffer)

    # Libraries may print.
    with os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)
        answered: BuiltKernels | str
        try:
            answered = _carry_out(order)
        except (RaydixError, OSError) as error:
            answered = str(error)
        pickle.dump(answered, stdout)


def _carry_out(order: KernelOrder) -> BuiltKernels:
    import torch

    from raydix.kernels.compiling.variants import TargetGpu
    from raydix.kernels.ops import import_gpu_ops
    from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
    from raydix.runtime.model.checkpoint.hub import settings_folder

    import_gpu_ops()
    # This does not open the device.
    facts = torch.cuda.get_device_properties(order.device_index)
    gpu = TargetGpu(capability=(facts.major, facts.minor), num_sms=facts.multi_processor_count)
    if order.checkpoint is not None:
        checkpoint = pickle.loads(order.checkpoint)
    else:
        checkpoint = read_checkpoint_config(settings_folder(order.config.model.path))
    return build_kernels(order.config, checkpoint, gpu)


def build_kernels(
    config: EngineConfig, checkpoint: "CheckpointConfig", gpu: "TargetGpu"
) -> BuiltKernels:
    """Find the variants of a model, and compile those that Triton's cache does not have."""
    from raydix.kernels.compiling.processes import compile_variants
    from raydix.kernels.compiling.variants import compiling_for
    from raydix.runtime.model.steps.step_variants import model_variants

    began_s = time.monotonic()
    with compiling_for(gpu):
        shaped = checkpoint.up_to(config.model.max_model_len)
        variants = model_variants(config, shaped.spec, shaped.max_position_embeddings)
        found_s = time.monotonic()
        compiled = compile_variants(variants, min(_num_cores(), _MAX_PROCESSES))
    return BuiltKernels(
        variants=variants,
        compiled=compiled,
        found_s=found_s - began_s,
        compiled_s=time.monotonic() - found_s,
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
