"""Which dispatch backends this machine can use, and why not the others.

Imports no torch, so that to find a library missing costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.moe.dispatch.packages import Packages

if TYPE_CHECKING:
    from raydix.moe.dispatch.machine import Machine

Check = Callable[["Machine"], str | None]
"""A check that returns what is in the way on a machine; None: nothing is."""


_SYMMETRIC_TORCH = (2, 11)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What a backend is made of, and what must hold before it is imported."""

    backend: str
    distributions: tuple[str, ...]
    """The packages that may bring the module; the first one found counts."""
    module: str
    attribute: str
    """The attribute of the module that other libraries with its name lack."""
    remedy: str
    """Advice for where none of these packages is installed."""
    checks: tuple[Check, ...]
    """The checks in order; the library is imported only if none of them finds anything."""
    note: Callable[["Machine"], str]
    """Makes the remark for a machine on which the backend can be used."""


def missing(backend: str, packages: Packages) -> Verdict | None:
    """The finding that the library is not installed; None: it is installed."""
    library = LIBRARIES[backend]
    return _absent(library) if _found(library, packages) is None else None


def probe(backend: str, machine: "Machine") -> Verdict:
    """Look at a machine without starting anything on its GPUs."""
    if backend in BUILT_IN:
        found = (obstacle for check in BUILT_IN[backend] if (obstacle := check(machine)))
        return Verdict(backend, next(found, None), f"torch {machine.torch_version}")
    return _probe_library(backend, machine)


def _probe_library(backend: str, machine: "Machine") -> Verdict:
    library = LIBRARIES[backend]
    found = _found(library, machine.packages)
    if found is None:
        return _absent(library)

    for check in library.checks:
        obstacle = check(machine)
        if obstacle is not None:
            return Verdict(backend, obstacle, found)

    # Last: a binary for another torch may load and then read garbage.
    error = machine.import_error(library.module, library.attribute)
    if error is not None:
        return Verdict(backend, f"{library.module} cannot be used: {error}", found)
    return Verdict(backend, None, f"{found}, torch {machine.torch_version}{library.note(machine)}")


def _absent(library: Library) -> Verdict:
    return Verdict(library.backend, f"not installed; {library.remedy}", "")


def _found(library: Library, packages: Packages) -> str | None:
    """The name and version of what is installed; None: nothing is."""
    for distribution in library.distributions:
        version = packages.version(distribution)
        if version is not None:
            return f"{distribution} {version}"
    return library.module if packages.has_module(library.module) else None


def _cuda(machine: "Machine") -> str | None:
    return _nvidia(machine) or _gpus(machine)


def _nvidia(machine: "Machine") -> str | None:
    return "it needs NVIDIA GPUs, this torch is built for ROCm" if machine.is_rocm else None


def _rocm(machine: "Machine") -> str | None:
    if not machine.is_rocm:
        return f"it needs AMD GPUs and torch for ROCm, torch is {machine.torch_version}"
    return _gpus(machine)


def _gpus(machine: "Machine") -> str | None:
    too_few = _several(machine)
    if too_few is not None:
        return too_few
    strangers = machine.unreachable_peers()
    if strangers:
        return f"GPUs {strangers[0][0]} and {strangers[0][1]} cannot read each other's memory"
    return None


def _several(machine: "Machine") -> str | None:
    if machine.num_gpus < 2:
        return f"it needs at least 2 GPUs that this process sees, there are {machine.num_gpus}"
    return None


def _in_torch(library: str) -> Check:
    """torch.distributed is built without what some platforms lack."""

    def check(machine: "Machine") -> str | None:
        if library in machine.torch_libraries:
            return None
        return f"torch {machine.torch_version} is built without {library}"

    return check


def _triton(machine: "Machine") -> str | None:
    if machine.packages.has_module("triton"):
        return None
    return "triton is not installed; pip install raydix[cuda]"


def _symmetric_memory(machine: "Machine") -> str | None:
    oldest = ".".join(map(str, _SYMMETRIC_TORCH))
    if tuple(map(int, _minor(machine.torch_version).split("."))) >= _SYMMETRIC_TORCH:
        return None
    return f"it needs torch {oldest} or newer, this is {machine.torch_version}"


def _pinned_torch(distribution: str) -> Check:
    """Wheels that name the one torch whose memory layout they were compiled for."""

    def check(machine: "Machine") -> str | None:
        wanted = machine.packages.required_torch(distribution)
        if wanted is None or _minor(wanted) == _minor(machine.torch_version):
            return None
        return (
            f"{distribution} {machine.packages.version(distribution)} is built for torch {wanted}, "
            f"this is {machine.torch_version}"
        )

    return check


def _listed_torch(distribution: str, fits: Mapping[str, tuple[str, ...]]) -> Check:
    """Wheels that do not say what they fit: `fits` has torch versions by their own ones."""

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


def _host_libraries(*needed: tuple[str, str, str | None, str]) -> Check:
    """Each: a library, a symbol in it, its version (None: any), and the package that brings it."""

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


def _deepep_note(machine: "Machine") -> str:
    nics = machine.mellanox_nics()
    if nics:
        return f"; its low-latency kernels could use {', '.join(nics)}, decodes take NVLink"
    return "; no InfiniBand NIC for its low-latency kernels, decodes take the intranode ones"


def _no_note(machine: "Machine") -> str:
    return ""


BUILT_IN: Mapping[str, tuple[Check, ...]] = {
    "symmetric": (_triton, _symmetric_memory, _cuda),
    "nccl": (_in_torch("nccl"), _nvidia, _several),
    "gloo": (_in_torch("gloo"),),
}
"""The checks, in order, for the backends that need no library of others."""
LIBRARIES = {
    library.backend: library
    for library in (
        Library(
            backend="deepep",
            distributions=("sgl-deep-ep", "deep-ep"),
            module="deep_ep",
            attribute="Buffer",
            remedy="pip install raydix[deepep] where its torch fits, or build DeepEP 1.2.1",
            checks=(_cuda, _pinned_torch("sgl-deep-ep")),
            note=_deepep_note,
        ),
        Library(
            backend="nixl_ep",
            distributions=("nixl-cu13",),
            module="nixl_ep",
            attribute="Buffer",
            remedy="pip install raydix[nixl-ep]",
            checks=(
                _cuda,
                _listed_torch(
                    "nixl-cu13",
                    {
                        "1.0": ("2.11", "2.12"),
                        "1.2": ("2.11", "2.12"),
                        "1.5": ("2.12", "2.13", "2.14"),
                    },
                ),
            ),
            note=_no_note,
        ),
        Library(
            backend="mooncake_ep",
            distributions=("mooncake-transfer-engine-cuda13", "mooncake-transfer-engine"),
            module="mooncake._ep",
            attribute="Buffer",
            remedy="pip install raydix[mooncake-ep]",
            checks=(
                _cuda,
                _host_libraries(
                    ("libibverbs.so.1", "ibv_reg_dmabuf_mr", "IBVERBS_1.12", "libibverbs1"),
                    ("libmlx5.so.1", "mlx5dv_devx_obj_create", "MLX5_1.7", "ibverbs-providers"),
                    ("libnuma.so.1", "numa_num_possible_cpus", "libnuma_1.3", "libnuma1"),
                    ("libcurl.so.4", "curl_easy_init", None, "libcurl4"),
                ),
            ),
            note=_no_note,
        ),
        Library(
            backend="mori",
            distributions=("amd-mori",),
            module="mori.ops",
            attribute="EpDispatchCombineOp",
            remedy="build MORI from its source; it is for AMD GPUs alone",
            checks=(_rocm,),
            note=_no_note,
        ),
    )
}
"""The libraries of others, by backend."""
