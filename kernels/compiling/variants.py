"""Variants of kernels: what Triton compiles for launches of a kernel, one for each kind of them.

Triton compiles a kernel anew for other types, constants and options, for integers that are 1 or a
multiple of 16 (but those of `do_not_specialize`), and for pointers that are aligned or not. Which
of them a model needs is found out by its launchers themselves, on tensors that have no memory and
for a GPU that need not be there: nothing is computed, and nothing compiled. So no kernel has a list
of its variants that could be wrong.
"""

import hashlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITCallable

from raydix import kernels

_WARP_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGpu:
    """The GPU for which kernels are compiled."""

    capability: tuple[int, int]
    num_sms: int

    @property
    def architecture(self) -> int:
        """What Triton calls it, such as 90."""
        major, minor = self.capability
        return 10 * major + minor


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """A kernel as it is compiled for one kind of arguments."""

    kernel: str
    """Its full name, such as `raydix.kernels.dense.norm._rms_norm`."""
    specialization: str
    """Types, constants and options, in Triton's own words."""

    def compile(self) -> Any:
        """Compile it, or find it in Triton's cache on disk. Returns Triton's `CompiledKernel`."""
        module, _, name = self.kernel.rpartition(".")
        return getattr(importlib.import_module(module), name).preload(self.specialization)

    def load(self) -> None:
        """Compile it, and bring it to the current GPU: a launch finds it in this process."""
        # The property loads the module into the CUDA context.
        assert self.compile().run is not None


class NamedGpu:
    """A driver that only says for which GPU kernels are compiled, and launches nothing."""

    def __init__(self, gpu: TargetGpu) -> None:
        self._gpu = gpu
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        """Tell Triton for what it compiles."""
        return GPUTarget("cuda", self._gpu.architecture, _WARP_SIZE)

    def get_current_device(self) -> int:
        """The number of the GPU, of which there is one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Nothing is ever enqueued on it."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What launchers ask to know."""
        return {"multiprocessor_count": self._gpu.num_sms}


def versions() -> dict[str, str]:
    """What compiles, and what is compiled: versions, and a digest of our own source."""
    digest = hashlib.sha256()
    folder = Path(kernels.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return {
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        # What launches a kernel is a module in C for one version of Python.
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "kernels": digest.hexdigest()[:16],
    }


def agree_on_keys() -> None:
    """Let every process that calls this find what another one has compiled.

    Triton's key of a kernel lacks the constants of a function that it calls, unless the key of that
    function was made before (as of 3.6). So all keys are made in one order, before any is needed.
    """
    names = [each.name for each in pkgutil.walk_packages(kernels.__path__, kernels.__name__ + ".")]
    modules = [importlib.import_module(name) for name in sorted(names)]
    functions = {
        (value.__module__, value.starting_line_number): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, JITCallable)
    }
    for _, function in sorted(functions.items()):
        assert function.cache_key


@contextmanager
def compiling_for(gpu: TargetGpu) -> Iterator[None]:
    """Meanwhile Triton compiles for this GPU, in all threads, and can launch nothing."""
    # Not `driver.active`, which would look for a GPU.
    before = driver._active
    driver.set_active(NamedGpu(gpu))
    try:
        yield
    finally:
        driver._active = before


def trace(
    launch: Callable[[], None], on_found: Callable[[Variant], None] | None = None
) -> tuple[Variant, ...]:
    """The variants that are launched meanwhile, of tensors on the meta device.

    `on_found` is called with each, once.

    Nothing is compiled. To be called within `compiling_for`, in a process that has not launched
    the kernels before.
    """
    found: dict[Variant, Any] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel = fn.jit_function
        variant = Variant(f"{fn.module}.{fn.name}", compile["specialization_data"])
        found[variant] = kernel
        if on_found is not None:
            on_found(variant)
        # The next launch of the same finds it, which takes a fraction of the time.
        kernel.device_caches[compile["device"]][0][key] = _NOT_COMPILED
        # Triton is told that there is nothing left to do.
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        launch()
    finally:
        knobs.runtime.jit_cache_hook = before
        for kernel in found.values():
            kernel.device_caches.clear()
    return tuple(sorted(found))


class _NotCompiled:
    """A compiled kernel whose launches do nothing."""

    function = None
    packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        """Nobody asks for any."""

    def run(self, *_: Any) -> None:
        """Return without a launch."""


_NOT_COMPILED = _NotCompiled()
