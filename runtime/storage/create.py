"""Make the backend that a configuration names."""

import math
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.config.l3 import (
    FakeL3Section,
    FileL3Section,
    L3Section,
    MooncakeL3Section,
    PluginL3Section,
    RedisL3Section,
    S3L3Section,
)
from raydix.runtime.config.storage_libraries import unknown_factory
from raydix.runtime.config.storage_plugins import FACTORY_GROUP, find_plugin
from raydix.runtime.config.store_section import StoreSection
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from raydix.runtime.storage.backends.redis import RedisBackend
from raydix.runtime.storage.backends.s3 import S3Backend
from raydix.runtime.storage.file_modes import MODES


def create_backend(section: L3Section) -> StorageBackend:
    """The backend that section `cache.l3` describes. Raises ConfigError if it cannot be made."""
    match section:
        case FileL3Section():
            return FileBackend(
                Path(section.path),
                section.max_bytes,
                modes=MODES[section.access],
                eviction=section.eviction,
            )
        case RedisL3Section():
            return RedisBackend(section.url, ttl_s=section.ttl_s, timeout_s=section.timeout_s)
        case S3L3Section():
            return S3Backend(section)
        case MooncakeL3Section():
            return MooncakeBackend(section)
        case FakeL3Section():
            faults = Faults(
                seed=section.seed,
                max_delay_s=section.max_delay_s,
                latency_s=section.latency_s,
                max_bytes_per_s=section.max_bytes_per_s or math.inf,
                failure_fraction=section.failure_fraction,
                corrupt_fraction=section.corrupt_fraction,
            )
            return FakeBackend(section.max_bytes, faults, eviction=section.eviction)
        case PluginL3Section():
            return _create_plugin(section, entry_points(group=FACTORY_GROUP))
        case _:
            return _create_of_plugin(section)


def _create_of_plugin(section: StoreSection) -> StorageBackend:
    """Have the plugin make it that has read this section."""
    plugin = find_plugin(section.backend)
    if plugin is None:
        raise ConfigError(
            f"cache.l3.backend is {section.backend!r}, a plugin that is not installed here; it was "
            "where the configuration was read. Install the package that brings it on every node."
        )
    backend: StorageBackend = plugin.load_factory()(section)
    return backend


def _create_plugin(section: PluginL3Section, installed: Iterable[EntryPoint]) -> StorageBackend:
    """Call the factory that a package has registered as `section.name`, with its options."""
    by_name = {point.name: point for point in installed}
    if section.name not in by_name:
        raise ConfigError(unknown_factory(section.name, sorted(by_name)))

    try:
        factory = by_name[section.name].load()
        backend: StorageBackend = factory(**section.options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cache.l3: storage plugin {section.name!r} cannot be made: {error}"
        ) from error
    return backend
