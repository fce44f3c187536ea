"""The libraries that backends of L3 import, and which of them are missing here."""

import importlib.util
import sys
from importlib.metadata import entry_points

from raydix.errors import ConfigError
from raydix.runtime.config.l3 import L3Section, PluginL3Section
from raydix.runtime.config.storage_plugins import FACTORY_GROUP, ClientLibrary, find_plugin

LIBRARIES = {
    "s3": ClientLibrary(
        package="obstore",
        statement="import obstore",
        remedy="pip install 'raydix[s3]'",
        needs="a bucket (cache.l3.bucket)",
    ),
    "mooncake": ClientLibrary(
        package="mooncake",
        statement="import mooncake.store",
        remedy="pip install 'raydix[mooncake]', and libibverbs1 from the system's packages",
        needs="a master (cache.l3.master)",
    ),
}
"""The libraries of backends that are no plugins."""


def missing_library(section: L3Section) -> str | None:
    """What of a backend's code is not installed here, and what to do; None: all is.

    Nothing is imported, as that may take seconds: a library that is there may be broken.
    """
    if isinstance(section, PluginL3Section):
        names = entry_points(group=FACTORY_GROUP).names
        return None if section.name in names else unknown_factory(section.name, sorted(names))

    library = LIBRARIES.get(section.backend)
    if library is None:
        try:
            plugin = find_plugin(section.backend)
        except ConfigError as error:
            return str(error)
        library = None if plugin is None else plugin.library
    if library is None or library.package in sys.modules:
        return None
    if importlib.util.find_spec(library.package) is not None:
        return None
    return (
        f"cache.l3.backend is {section.backend!r}, and its library {library.package} is not "
        f"installed. On every node where an engine runs: {library.remedy}."
    )


def unknown_factory(name: str, installed: list[str]) -> str:
    """The words for a factory of this name, which no installed package brings."""
    names = ", ".join(installed) or "none is installed"
    return (
        f"cache.l3.name is {name!r}; expected an entry point of group {FACTORY_GROUP} ({names}). "
        "Install the package that brings it."
    )
