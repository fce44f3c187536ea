"""Make the backend that a configuration names."""

import math
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import assert_never

from raydix.errors import ConfigError
from raydix.runtime.config.l3 import (
    AibrixL3Section,
    FakeL3Section,
    FileL3Section,
    Hf3fsL3Section,
    L3Section,
    MooncakeL3Section,
    NixlL3Section,
    PluginL3Section,
    RedisL3Section,
    S3L3Section,
)
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.backends.aibrix import AibrixBackend
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.backends.hf3fs import Hf3fsBackend
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from raydix.runtime.storage.backends.nixl import NixlTransfers
from raydix.runtime.storage.backends.redis import RedisBackend
from raydix.runtime.storage.backends.s3 import S3Backend
from raydix.runtime.storage.file_modes import GROUP_TOO, OWNER_ALONE

ENTRY_POINT_GROUP = "raydix.storage"
_MODES = {"owner": OWNER_ALONE, "group": GROUP_TOO}


def create_backend(section: L3Section) -> StorageBackend:
    """The backend that section `cache.l3` describes. Raises ConfigError if it cannot be made."""
    modes = OWNER_ALONE
    if isinstance(section, FileL3Section | NixlL3Section):
        modes = _MODES[section.access]

    match section:
        case FileL3Section():
            return FileBackend(
                Path(section.path), section.max_bytes, modes=modes, eviction=section.eviction
            )
        case RedisL3Section():
            return RedisBackend(section.url, ttl_s=section.ttl_s, timeout_s=section.timeout_s)
        case S3L3Section():
            return S3Backend(section)
        case MooncakeL3Section():
            return MooncakeBackend(section)
        case Hf3fsL3Section():
            return Hf3fsBackend(Path(section.path), section.max_bytes, eviction=section.eviction)
        case NixlL3Section():
            transfers = NixlTransfers(section.plugin, section.plugin_options)
            return FileBackend(
                Path(section.path),
                section.max_bytes,
                transfers=transfers,
                modes=modes,
                eviction=section.eviction,
            )
        case AibrixL3Section():
            return AibrixBackend(
                Path(section.path),
                section.max_bytes,
                ttl_s=section.ttl_s,
                eviction=section.eviction,
            )
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
            return _create_plugin(section, entry_points(group=ENTRY_POINT_GROUP))
        case _:
            assert_never(section)


def _create_plugin(section: PluginL3Section, installed: Iterable[EntryPoint]) -> StorageBackend:
    """Call the factory that a package has registered as `section.name`, with its options."""
    by_name = {point.name: point for point in installed}
    if section.name not in by_name:
        names = ", ".join(sorted(by_name)) or "none is installed"
        raise ConfigError(
            f"cache.l3.name is {section.name!r}; expected an entry point of group "
            f"{ENTRY_POINT_GROUP} ({names}). Install the package that brings it."
        )

    try:
        factory = by_name[section.name].load()
        backend: StorageBackend = factory(**section.options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cache.l3: storage plugin {section.name!r} cannot be made: {error}"
        ) from error
    return backend
