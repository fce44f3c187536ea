"""Section `cache.l3` with each backend of this folder."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from raydix.runtime.config.l3 import Access, FolderL3Section

SHARED_MEMORY = Path("/dev/shm")
"""The folder where 3FS looks for memory to share."""


class Hf3fsL3Section(FolderL3Section):
    """L3 in slab files on a mounted 3FS, without its FUSE client's copies."""

    arena_folder: ClassVar[str | None] = str(SHARED_MEMORY)  # 3FS maps memory by name
    backend: Literal["hf3fs"]
    path: str = Field(
        description="Folder on a mount of 3FS, created if absent; one engine at a time uses it."
    )


class NixlL3Section(FolderL3Section):
    """L3 in files below one folder, moved by NIXL."""

    backend: Literal["nixl"]
    path: str = Field(description="Folder of the objects, laid out as by backend `file`.")
    access: Access = "owner"
    plugin: str = Field("POSIX", description="NIXL's plugin for files.")
    plugin_options: dict[str, str] = Field(
        default_factory=lambda: {"use_uring": "true"},
        description="What NIXL's plugin is started with.",
    )


class AibrixL3Section(FolderL3Section):
    """L3 in a RocksDB folder, through AIBrix's connector."""

    backend: Literal["aibrix"]
    path: str = Field(description="Folder of the database, for one engine at a time.")
    ttl_s: Annotated[int, Field(ge=1)] = Field(
        7 * 24 * 3600, description="Objects older than this go when the database is compacted."
    )
