"""The backends of this folder, as entry points of group `raydix.l3` name them.

Imports no adapter, so that a configuration is read without the libraries that they need.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from raydix.plugins.storage.sections import AibrixL3Section, Hf3fsL3Section, NixlL3Section
from raydix.runtime.config.storage_plugins import ClientLibrary, StoragePlugin

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydix.runtime.storage.backend import StorageBackend


def _load_hf3fs() -> "Callable[[Hf3fsL3Section], StorageBackend]":
    from raydix.plugins.storage.hf3fs import Hf3fsBackend

    return lambda section: Hf3fsBackend(
        Path(section.path), section.max_bytes, eviction=section.eviction
    )


def _load_nixl() -> "Callable[[NixlL3Section], StorageBackend]":
    from raydix.plugins.storage.nixl import NixlTransfers
    from raydix.runtime.storage.backends.file import FileBackend
    from raydix.runtime.storage.file_modes import MODES

    return lambda section: FileBackend(
        Path(section.path),
        section.max_bytes,
        transfers=NixlTransfers(section.plugin, section.plugin_options),
        modes=MODES[section.access],
        eviction=section.eviction,
    )


def _load_aibrix() -> "Callable[[AibrixL3Section], StorageBackend]":
    from raydix.plugins.storage.aibrix import AibrixBackend

    return lambda section: AibrixBackend(
        Path(section.path), section.max_bytes, ttl_s=section.ttl_s, eviction=section.eviction
    )


HF3FS = StoragePlugin(
    section=Hf3fsL3Section,
    library=ClientLibrary(
        package="hf3fs_fuse",
        statement="from hf3fs_fuse import io; "
        "from raydix.plugins.storage.mounts import require_mount; require_mount()",
        remedy="build hf3fs_fuse and its extension from 3FS, and mount 3FS",
        needs="a folder on 3FS (cache.l3.path)",
    ),
    load_factory=_load_hf3fs,
)

NIXL = StoragePlugin(
    section=NixlL3Section,
    library=ClientLibrary(
        package="nixl",
        statement="from nixl._api import nixl_agent as agent, nixl_agent_config as config; "
        "agent('doctor', config(enable_prog_thread=False, backends=[]))"
        ".create_backend('POSIX', {'use_uring': 'true'})",
        remedy="pip install raydix[nixl]; where io_uring is not allowed set "
        "cache.l3.plugin_options to {use_aio: 'true'}",
        needs="a folder (cache.l3.path); its POSIX plugin starts, with io_uring",
    ),
    load_factory=_load_nixl,
)

AIBRIX = StoragePlugin(
    section=AibrixL3Section,
    library=ClientLibrary(
        package="aibrix_kvcache",
        statement="import rocksdict; from aibrix_kvcache.l2.connectors import rocksdb",
        remedy="pip install raydix[aibrix]",
        needs="a folder for each engine (cache.l3.path)",
    ),
    load_factory=_load_aibrix,
)
