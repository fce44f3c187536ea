"""Dispatch backends by libraries of others: one of Raydix's own, and plugins by entry points.

Imports no torch, so that to find a library missing costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.errors import ConfigError
from raydix.moe.dispatch.checks import Check, needs_cuda, needs_pinned_torch
from raydix.moe.dispatch.entry_points import ENTRY_POINT_GROUP, installed_plugins

if TYPE_CHECKING:
    from raydix.moe.dispatch.machine import Machine
    from raydix.moe.dispatch.protocol import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A backend by a library of others, and what must hold before that is imported.

    It is what an entry point of group `raydix.dispatch` names, by the name of the backend.
    """

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
    load_adapter: Callable[[], "Adapter"]
    """Imports the adapter, and torch with it."""


def _deepep_note(machine: "Machine") -> str:
    nics = machine.mellanox_nics()
    if nics:
        return f"; its low-latency kernels could use {', '.join(nics)}, decodes take NVLink"
    return "; no InfiniBand NIC for its low-latency kernels, decodes take the intranode ones"


def _load_deepep() -> "Adapter":
    from raydix.moe.dispatch.deepep import DeepEpDispatcher, deepep_obstacle
    from raydix.moe.dispatch.protocol import Adapter

    return Adapter(deepep_obstacle, DeepEpDispatcher)


DEEPEP = Library(
    backend="deepep",
    distributions=("sgl-deep-ep", "deep-ep"),
    module="deep_ep",
    attribute="Buffer",
    remedy="pip install raydix[deepep] where its torch fits, or build DeepEP 1.2.1",
    checks=(needs_cuda, needs_pinned_torch("sgl-deep-ep")),
    note=_deepep_note,
    load_adapter=_load_deepep,
)


def library_names() -> tuple[str, ...]:
    """The backends by libraries of others that there are, installed plugins last."""
    return (DEEPEP.backend, *installed_plugins())


def find_library(backend: str) -> Library:
    """The library of this backend. Raises ConfigError if there is none, or its plugin is broken."""
    if backend == DEEPEP.backend:
        return DEEPEP
    plugins = installed_plugins()
    if backend not in plugins:
        raise ConfigError(
            f"experts.dispatch is {backend!r}; expected {DEEPEP.backend} or an entry point of "
            f"group {ENTRY_POINT_GROUP} ({', '.join(plugins) or 'none is installed'}). Install the "
            "package that brings it."
        )

    try:
        library = plugins[backend].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"experts.dispatch: plugin {backend!r} cannot be loaded: {error}"
        ) from error
    if not isinstance(library, Library):
        raise ConfigError(
            f"experts.dispatch: plugin {backend!r} names a {type(library).__name__}; expected a "
            "raydix.moe.dispatch.library.Library."
        )
    return library
