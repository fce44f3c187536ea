"""Which dispatch backends this machine can use, and why not the others.

Imports no torch, so that to find a library missing costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.moe.dispatch.checks import (
    Check,
    needs_cuda,
    needs_in_torch,
    needs_nvidia,
    needs_several_gpus,
    needs_symmetric_memory,
    needs_triton,
)
from raydix.moe.dispatch.library import Library, find_library
from raydix.moe.dispatch.packages import Packages

if TYPE_CHECKING:
    from raydix.moe.dispatch.machine import Machine


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings about one backend on one machine."""

    backend: str
    obstacle: str | None
    """The reason why the backend cannot be used; None if it can."""
    detail: str
    """A description of what was found."""

    def __str__(self) -> str:
        return f"unavailable: {self.obstacle}" if self.obstacle else f"available; {self.detail}"


def missing(library: Library, packages: Packages) -> Verdict | None:
    """The finding that the library is not installed; None: it is installed."""
    return _absent(library) if _found(library, packages) is None else None


def probe(backend: str, machine: "Machine") -> Verdict:
    """Look at a machine without starting anything on its GPUs.

    Raises ConfigError if there is no such backend, or its plugin is broken.
    """
    if backend in BUILT_IN:
        found = (obstacle for check in BUILT_IN[backend] if (obstacle := check(machine)))
        return Verdict(backend, next(found, None), f"torch {machine.torch_version}")
    return probe_library(find_library(backend), machine)


def probe_library(library: Library, machine: "Machine") -> Verdict:
    """Look whether a machine has the library, and what it needs."""
    found = _found(library, machine.packages)
    if found is None:
        return _absent(library)

    for check in library.checks:
        obstacle = check(machine)
        if obstacle is not None:
            return Verdict(library.backend, obstacle, found)

    # Last: a binary for another torch may load and then read garbage.
    error = machine.import_error(library.module, library.attribute)
    if error is not None:
        return Verdict(library.backend, f"{library.module} cannot be used: {error}", found)
    return Verdict(
        library.backend, None, f"{found}, torch {machine.torch_version}{library.note(machine)}"
    )


def _absent(library: Library) -> Verdict:
    return Verdict(library.backend, f"not installed; {library.remedy}", "")


def _found(library: Library, packages: Packages) -> str | None:
    """The name and version of what is installed; None: nothing is."""
    for distribution in library.distributions:
        version = packages.version(distribution)
        if version is not None:
            return f"{distribution} {version}"
    return library.module if packages.has_module(library.module) else None


BUILT_IN: Mapping[str, tuple[Check, ...]] = {
    "symmetric": (needs_triton, needs_symmetric_memory, needs_cuda),
    "nccl": (needs_in_torch("nccl"), needs_nvidia, needs_several_gpus),
    "gloo": (needs_in_torch("gloo"),),
}
"""The checks, in order, for the backends that need no library of others."""
