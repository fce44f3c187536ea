"""A process that compiles a rank's kernels while the rank loads its weights.

It needs torch and the shapes of the model alone: see `model_variants`.
"""

import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydix.errors import ConfigError, RaydixError
from raydix.kernels.compiling.packed import pack, unpack
from raydix.runtime.actors.process import end_with_parent
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.paths import HubName
from raydix.runtime.garbage import nothing_collected
from raydix.runtime.model.checkpoint.late_import import hidden

if TYPE_CHECKING:
    # Torch and Triton, which whoever starts the process does without.
    from raydix.kernels.compiling.processes import Compiled
    from raydix.kernels.compiling.variants import TargetGpu, Variant
    from raydix.runtime.model.checkpoint.checkpoint_config import CheckpointConfig
    from raydix.runtime.model.spec.spec import ModelSpec

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
    packed: bytes | None = None
    """The folder `model.kernels`, from the host of whoever started the engine; None: the path is
    looked for here.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltKernels:
    """All variants that a rank launches, which Triton's cache on this host now has."""

    variants: "tuple[Variant, ...]"
    compiled: "tuple[Compiled, ...]"
    found_s: float
    """The time that it took to find out which they are."""
    compiled_s: float
    """The time that passed from then on until all were compiled."""
    left_aside: str | None = None
    """Why the artefact that was asked for does not serve; None: it does, or none was asked for."""

    @property
    def num_new(self) -> int:
        """The number of variants that had to be compiled."""
        return sum(not each.was_there for each in self.compiled)


class KernelBuild:
    """Owns: the process that compiles, until `result`, and with it at the latest it ends."""

    def __init__(self, order: KernelOrder) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # It would say that it finds no torch: see `_carry_out`.
            "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        }
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
        answered = self.answer()
        if isinstance(answered, BuiltKernels):
            if answered.left_aside is not None:
                logger.warning(
                    "model.kernels is left aside, kernels are compiled here: %s. Run `raydix "
                    "warm-up` again with this configuration.",
                    answered.left_aside,
                )
            logger.info("%s", describe(answered))
            return answered
        logger.warning(
            "kernels are compiled one by one as steps are tried, as the process that does so "
            "ahead failed: %s",
            answered,
        )
        return None

    def answer(self) -> BuiltKernels | str:
        """Wait for the kernels; in words why not all of them are there."""
        assert self._process.stdout is not None
        told = self._process.stdout.read()
        code = self._process.wait()
        self._process.stdout.close()
        answered: BuiltKernels | str = f"it ended with exit code {code}"
        return pickle.loads(told) if code == 0 else answered


def start_build(order: KernelOrder) -> KernelBuild | None:
    """Begin to compile; None where no kernels are launched."""
    if order.config.model.device != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return KernelBuild(order)


def build_ahead(config: EngineConfig) -> None:
    """Begin to compile what ranks on this host will ask for, while Ray starts.

    They wait for it, as for each other, by the lock of Triton's cache. If it fails they compile for
    themselves, and say what is wrong. With an artefact there is nothing to compile, and a model of
    the Hub may not be here yet.
    """
    if config.model.kernels is None and HubName.parse(config.model.path) is None:
        order = KernelOrder(config=config, checkpoint=None, device_index=0)
        # The kernel ends the process with the thread that started it.
        on_thread("kernels", _follow, order)


def _follow(order: KernelOrder) -> None:
    build = start_build(order)
    answered = None if build is None else build.answer()
    if isinstance(answered, BuiltKernels):
        logger.info("beside the start: %s", describe(answered))


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
        f"compiled {built.compiled_s:.2f} s later{': ' if new else ''}{named}"
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
    from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
    from raydix.runtime.model.checkpoint.hub import settings_folder

    if order.checkpoint is not None:
        checkpoint = pickle.loads(order.checkpoint)
    else:
        # With torch in sight transformers would import all that its models may need.
        with nothing_collected(), hidden("torch"):
            checkpoint = read_checkpoint_config(settings_folder(order.config.model.path))
    with nothing_collected():
        from raydix.kernels.ops import import_gpu_ops

        import_gpu_ops()
    gpu = _gpu_here(order.device_index)
    with tempfile.TemporaryDirectory() as name:
        folder = None if order.config.model.kernels is None else Path(order.config.model.kernels)
        if order.packed is not None:
            folder = Path(name)
            unpack(order.packed, folder)
        return build_kernels(order.config, checkpoint, gpu, folder)


def build_kernels(
    config: EngineConfig,
    checkpoint: "CheckpointConfig",
    gpu: "TargetGpu",
    folder: Path | None = None,
) -> BuiltKernels:
    """Find the variants of a model, and put all of them into Triton's cache, with their list.

    `folder`: of artefacts, of which the one for this model, GPU and versions has both.
    """
    from raydix.kernels.compiling.artefact import (
        Artefact,
        keep_variants,
        kept_variants,
        read_artefact,
    )
    from raydix.kernels.compiling.processes import Compilers
    from raydix.kernels.compiling.variants import compiling_for
    from raydix.runtime.model.steps.step_variants import identify, model_variants

    began_s = time.monotonic()
    shape = _shape_of(config, checkpoint, gpu)
    identity = identify(*shape, gpu)
    left_aside: str | None = None
    if folder is not None:
        artefact = read_artefact(folder, identity)
        if isinstance(artefact, Artefact):
            artefact.install()
            return BuiltKernels(
                variants=artefact.variants,
                compiled=(),
                found_s=time.monotonic() - began_s,
                compiled_s=0.0,
            )
        # It may have been unpacked here under another name.
        left_aside = artefact.replace(str(folder), config.model.kernels or str(folder))

    num_processes = min(_num_cores(), _MAX_PROCESSES)
    with compiling_for(gpu), Compilers(num_processes, end_with_parent) as compilers:
        # Who has compiled meanwhile has written the list.
        kept = kept_variants(identity)
        variants = model_variants(*shape, compilers.begin) if kept is None else kept
        found_s = time.monotonic()
        compiled = compilers.finish(variants)
        if kept is None:
            # Without a list, as where the disk is full, whoever starts next finds them again.
            with suppress(OSError):
                keep_variants(identity, variants)
    return BuiltKernels(
        variants=variants,
        compiled=compiled,
        found_s=found_s - began_s,
        compiled_s=time.monotonic() - found_s,
        left_aside=left_aside,
    )


def write_kernels(
    config: EngineConfig, out: Path, cache: Path, told_gpu: str | None
) -> tuple[BuiltKernels, Path]:
    """Compile a model's kernels into an empty folder, and make an artefact of them below `out`.

    `told_gpu`: such as `9.0:132`; None: the first one here. Raises ConfigError if it is neither, or
    there is no Triton, or for a model that runs on the CPU.
    """
    if config.model.device != "cuda":
        raise ConfigError("model.device is cpu, where no kernels run. Set model.device to cuda.")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("triton is not installed; pip install raydix[cuda]")
    import torch

    from raydix.kernels.compiling.artefact import compiling_into, write_artefact
    from raydix.kernels.ops import import_gpu_ops
    from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
    from raydix.runtime.model.checkpoint.hub import settings_folder
    from raydix.runtime.model.steps.step_variants import identify

    if told_gpu is None and not torch.cuda.is_available():
        raise ConfigError("there is no GPU here. Name the one to compile for: --gpu 9.0:132.")
    gpu = _gpu_here(0) if told_gpu is None else _read_gpu(told_gpu)
    import_gpu_ops()
    checkpoint = read_checkpoint_config(settings_folder(config.model.path))
    with compiling_into(cache):
        built = build_kernels(config, checkpoint, gpu)
    identity = identify(*_shape_of(config, checkpoint, gpu), gpu)
    return built, write_artefact(out, identity, built.variants, cache)


def _shape_of(
    config: EngineConfig, checkpoint: "CheckpointConfig", gpu: "TargetGpu"
) -> "tuple[EngineConfig, ModelSpec, int]":
    """What decides which kernels a model has on a GPU, as `model_variants` takes it."""
    served = checkpoint.served(config.quantization, "cuda", gpu.capability)
    shaped = served.up_to(config.model.max_model_len)
    return config, shaped.spec, shaped.max_position_embeddings


def _read_gpu(told: str) -> "TargetGpu":
    """The GPU that is written as `9.0:132`. Raises ConfigError."""
    from raydix.kernels.compiling.variants import TargetGpu

    try:
        capability, _, num_sms = told.partition(":")
        major, _, minor = capability.partition(".")
        return TargetGpu(capability=(int(major), int(minor)), num_sms=int(num_sms))
    except ValueError:
        raise ConfigError(
            f"--gpu is {told}; expected a compute capability and a number of multiprocessors, such "
            "as 9.0:132."
        ) from None


def _gpu_here(index: int) -> "TargetGpu":
    import torch

    from raydix.kernels.compiling.variants import TargetGpu

    # This does not open the device.
    facts = torch.cuda.get_device_properties(index)
    return TargetGpu(capability=(facts.major, facts.minor), num_sms=facts.multi_processor_count)


def pack_kernels(config: EngineConfig) -> bytes | None:
    """The folder `model.kernels`, for ranks on other nodes; None if it is not on this host."""
    if config.model.kernels is None or not Path(config.model.kernels).is_dir():
        return None
    return pack(Path(config.model.kernels))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
