"""Backends of L3 that installed packages bring together with keys of their own in `cache.l3`.

Imports none of them but the one that is asked for.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeGuard, get_args

from raydix.errors import ConfigError
from raydix.runtime.config.store_section import StoreSection

ENTRY_POINT_GROUP = "raydix.l3"
FACTORY_GROUP = "raydix.storage"
"""The group of backends that bring a factory alone, which checks its options itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLibrary:
    """The library that a backend's adapter imports."""

    package: str
    statement: str
    """A statement that fails where the adapter would, tried in a process of its own.

    The last line that it prints is told to people where it succeeds.
    """
    remedy: str
    """What to do where the statement fails."""
    needs: str
    """What else the backend needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlugin:
    """What an entry point names. Its name is the one of `cache.l3.backend`."""

    section: type[StoreSection]
    """The section `cache.l3` with this backend: its key `backend` admits the name alone."""
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
    # Whatever the code of another package raises: one broken plugin must not end a command that
    # lists them all, or uses another one.
    except Exception as error:
        raise ConfigError(
            f"cache.l3.backend is {name!r}, a plugin that cannot be loaded ({point.value}: "
            f"{type(error).__name__}: {error}). Install the package that brings it anew, or "
            "set another backend."
        ) from error
    if not _is_plugin_of(name, plugin):
        raise ConfigError(
            f"cache.l3.backend is {name!r}, but its entry point of group {ENTRY_POINT_GROUP} names "
            f"{point.value}; expected a StoragePlugin for this backend: its section is a "
            f"StoreSection with backend: Literal[{name!r}]. A factory alone belongs to group "
            f"{FACTORY_GROUP}: set cache.l3.backend to plugin, and cache.l3.name."
        )
    return plugin


def _is_plugin_of(name: str, loaded: object) -> TypeGuard[StoragePlugin]:
    """Whether what an entry point has brought is a plugin for the backend of this name."""
    if not isinstance(loaded, StoragePlugin):
        return False
    section: Any = loaded.section
    is_store = isinstance(section, type) and issubclass(section, StoreSection)
    return is_store and backend_of(section) == name


def loadable_plugins() -> list[StoragePlugin]:
    """All installed plugins, but for those that cannot be loaded."""
    found = []
    for name in installed_plugins():
        with contextlib.suppress(ConfigError):
            found.append(find_plugin(name))
    return [plugin for plugin in found if plugin is not None]


def backend_of(section: type[StoreSection]) -> str | None:
    """The one value of a section's key `backend`; None without that key, or if it is any text."""
    field = section.model_fields.get("backend")
    names = () if field is None else get_args(field.annotation)
    return str(names[0]) if names else None
