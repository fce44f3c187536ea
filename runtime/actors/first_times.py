"""What a rank does before it serves, so that no request waits for anything that is done first."""

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from raydix.runtime.actors.kernel_build import KernelBuild
from raydix.runtime.model.steps.rehearsal import rehearse
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.phases import phase

if TYPE_CHECKING:
    # Triton is there on machines with a GPU alone.
    from raydix.kernels.compiling.compilations import Compilations

logger = logging.getLogger(__name__)


class FirstTimes:
    """Owns: the count of kernels that this process compiles, and whether it serves yet."""

    def __init__(self) -> None:
        self._compilations: Compilations | None = None

    def load(self, build: KernelBuild | None) -> None:
        """Wait for kernels that another process compiles, and bring all to the current device."""
        if importlib.util.find_spec("triton") is None:
            return
        from raydix.kernels.compiling.compilations import Compilations

        self._compilations = Compilations()
        self._compilations.watch()
        if build is None:
            return
        with phase(logger, "kernels built"):
            built = build.result()
        if built is None:
            return
        with phase(logger, "kernels loaded"):
            self._compilations.add_compiled(built.num_new)
            for variant in built.variants:
                variant.load()

    def rehearse(self, runner: ModelRunner) -> None:
        """Rehearse steps on the thread that launches them, and count from then on what is late."""
        rehearse(runner)
        if self._compilations is not None:
            self._compilations.serve()

    def stats(self) -> dict[str, Any]:
        """Kernels compiled so far: see `Compilations.stats`."""
        return {} if self._compilations is None else self._compilations.stats()
