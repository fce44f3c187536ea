"""Backends of L3 that installed packages bring together with keys of their own in `cache.l3`.

Imports none of them but the one that is asked for.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from raydix.errors import ConfigError
from raydix.runtime.config.values import Section

ENTRY_POINT_GROUP = "raydix.l3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLibrary:
    """The library that a backend's adapter imports."""

    package: str
    statement: str
    """A statement that fails where the adapter would, tried in a process of its own."""
    remedy: str
    """What to do where the statement fails."""
    needs: str
    """What else the backend needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlugin:
    """What an entry point names. Its name is the one of `cache.l3.backend`."""

    section: type[Section]
    """The section `cache.l3` with this backend: a `StoreSection` whose `backend` is the name."""
    library: ClientLibrary
    load_factory: Callable[[], Callable[[Any], Any]]
    """Imports the adapter, and returns what makes a `StorageBackend` of a section."""


def installed_plugins() -> dict[str, EntryPoint]:
    """The entry points of all plugins, in order of their names."""
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}


def find_plugin(name: str) -> StoragePlugin | None:
    """The installed plugin of this name; None if there is none.

    Raises ConfigError if its entry point cannot be loaded, or names something else.
    """
    point = installed_plugins().get(name)
    if point is None:
        return None

    try:
        plugin = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cache.l3.backend is {name!r}, a plugin that cannot be loaded ({point.value}: "
            f"{error}). Install the package that brings it anew, or set another backend."
        ) from error
    if not isinstance(plugin, StoragePlugin) or backend_of(plugin.section) != name:
        raise ConfigError(
            f"cache.l3.backend is {name!r}, but its entry point of group {ENTRY_POINT_GROUP} names "
            f"{point.value}; expected a StoragePlugin for this backend. A factory alone belongs to "
            "group raydix.storage: set cache.l3.backend to plugin, and cache.l3.name."
        )
    return plugin


def loadable_plugins() -> list[StoragePlugin]:
    """All installed plugins, but for those that cannot be loaded."""
    found = []
    for name in installed_plugins():
        with contextlib.suppress(ConfigError):
            found.append(find_plugin(name))
    return [plugin for plugin in found if plugin is not None]


def backend_of(section: type[Section]) -> str | None:
    """The one value of a section's key `backend`; None if it may be any text."""
    names = get_args(section.model_fields["backend"].annotation)
    return str(names[0]) if names else None
