"""What may be in the way of a dispatch backend on a machine: each check returns that, or None.

Imports no torch, so that to find a library missing costs nothing.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydix.moe.dispatch.machine import Machine

Check = Callable[["Machine"], str | None]
"""A check that returns what is in the way on a machine; None: nothing is."""

_SYMMETRIC_TORCH = (2, 11)


def needs_cuda(machine: "Machine") -> str | None:
    """Several NVIDIA GPUs that read each other's memory."""
    return needs_nvidia(machine) or _gpus(machine)


def needs_nvidia(machine: "Machine") -> str | None:
    """A torch that is built for NVIDIA GPUs."""
    return "it needs NVIDIA GPUs, this torch is built for ROCm" if machine.is_rocm else None


def needs_rocm(machine: "Machine") -> str | None:
    """Several AMD GPUs that read each other's memory."""
    if not machine.is_rocm:
        return f"it needs AMD GPUs and torch for ROCm, torch is {machine.torch_version}"
    return _gpus(machine)


def _gpus(machine: "Machine") -> str | None:
    too_few = needs_several_gpus(machine)
    if too_few is not None:
        return too_few
    strangers = machine.unreachable_peers()
    if strangers:
        return f"GPUs {strangers[0][0]} and {strangers[0][1]} cannot read each other's memory"
    return None


def needs_several_gpus(machine: "Machine") -> str | None:
    """At least two GPUs in this machine."""
    if machine.num_gpus < 2:
        return f"it needs at least 2 GPUs that this process sees, there are {machine.num_gpus}"
    return None


def needs_in_torch(library: str) -> Check:
    """A torch whose distributed package is built with this library."""

    def check(machine: "Machine") -> str | None:
        if library in machine.torch_libraries:
            return None
        return f"torch {machine.torch_version} is built without {library}"

    return check


def needs_triton(machine: "Machine") -> str | None:
    """The package Triton."""
    if machine.packages.has_module("triton"):
        return None
    return "triton is not installed; pip install raydix[cuda]"


def needs_symmetric_memory(machine: "Machine") -> str | None:
    """A torch that has symmetric memory."""
    oldest = ".".join(map(str, _SYMMETRIC_TORCH))
    if tuple(map(int, _minor(machine.torch_version).split("."))) >= _SYMMETRIC_TORCH:
        return None
    return f"it needs torch {oldest} or newer, this is {machine.torch_version}"


def needs_pinned_torch(distribution: str) -> Check:
    """The one torch that the wheel names, for whose memory layout it was compiled."""

    def check(machine: "Machine") -> str | None:
        wanted = machine.packages.required_torch(distribution)
        if wanted is None or _minor(wanted) == _minor(machine.torch_version):
            return None
        return (
            f"{distribution} {machine.packages.version(distribution)} is built for torch {wanted}, "
            f"this is {machine.torch_version}"
        )

    return check


def needs_listed_torch(distribution: str, fits: Mapping[str, tuple[str, ...]]) -> Check:
    """A torch that a wheel fits, which does not say so itself: `fits` has them by its versions."""

    def check(machine: "Machine") -> str | None:
        version = machine.packages.version(distribution)
        if version is None:
            return None
        wanted = fits.get(_minor(version))
        if wanted is None:
            known = ", ".join(fits)
            return f"it is not known which torch {distribution} {version} fits; expected {known}"
        if _minor(machine.torch_version) in wanted:
            return None
        return (
            f"{distribution} {version} is built for torch {' and '.join(wanted)}, "
            f"this is {machine.torch_version}"
        )

    return check


def needs_host_libraries(*needed: tuple[str, str, str | None, str]) -> Check:
    """Libraries of the system, each with a symbol, its version (None: any) and its package."""

    def check(machine: "Machine") -> str | None:
        for library, symbol, version, package in needed:
            error = machine.symbol_error(library, symbol, version)
            if error is not None:
                return f"{error}; install the system's {package}"
        return None

    return check


def _minor(version: str) -> str:
    """The major and minor part of a version: 2.11 of 2.11.0+cu130."""
    return ".".join(version.split("+")[0].split(".")[:2])


def no_note(machine: "Machine") -> str:
    """There is nothing to add."""
    return ""
