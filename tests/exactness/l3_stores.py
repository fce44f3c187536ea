"""Every L3 backend with a store of its own, as an engine's configuration names it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raydix.plugins.storage import hf3fs
from tests.plugins.storage.aibrix_store import require_aibrix
from tests.plugins.storage.hf3fs_emulator import UsrbioEmulator
from tests.runtime.storage.backends.mooncake_service import MooncakeService
from tests.runtime.storage.backends.moto_server import MotoServer
from tests.runtime.storage.backends.redis_server import RedisServer
from tests.runtime.storage.plugin_package import install_documented_package

L3_BACKENDS = (
    "file",
    "fake",
    "redis",
    "mooncake",
    "nixl",
    "aibrix",
    "s3",
    "hf3fs_emulated",
    "hf3fs",
    "plugin",
)
EMPTY_IS_REFUSED = ("mooncake", "hf3fs_emulated", "hf3fs")
"""Their services store no object without bytes."""


@contextmanager
def l3_store(backend: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Section `cache.l3` for an empty store that lasts as long as the block.

    Skips where it cannot run.
    """
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        yield _start(backend, folder, stack, patch)


def _start(
    backend: str, folder: Path, stack: ExitStack, patch: pytest.MonkeyPatch
) -> dict[str, Any]:
    path = str(folder / "l3")
    match backend:
        case "fake":
            return {"backend": "fake"}
        case "redis":
            redis = RedisServer()
            stack.callback(redis.kill)
            return {"backend": "redis", "url": redis.url}
        case "mooncake":
            mooncake = MooncakeService()
            stack.callback(mooncake.kill)
            return {"backend": "mooncake", "master": mooncake.address}
        case "s3":
            moto = MotoServer()
            stack.callback(moto.kill)
            store = moto.make_store()
            return {"backend": "s3", "bucket": store.bucket, "endpoint": store.endpoint}
        case "plugin":
            name = install_documented_package(folder / "site")
            patch.setattr(sys, "path", [str(folder / "site"), *sys.path])
            return {
                "backend": "plugin",
                "name": name,
                "options": {"path": str(folder / "objects.db")},
            }
        case "hf3fs_emulated":
            usrbio = UsrbioEmulator(folder)
            patch.setattr(hf3fs, "_import_usrbio", lambda: usrbio)
            patch.setitem(sys.modules, "hf3fs_fuse", ModuleType("hf3fs_fuse"))
            return {"backend": "hf3fs", "path": path}
        case "hf3fs":
            mount = os.environ.get("HF3FS_MOUNT")
            if mount is None:
                pytest.skip("HF3FS_MOUNT does not name a 3FS mount")
            return {
                "backend": "hf3fs",
                "path": stack.enter_context(tempfile.TemporaryDirectory(dir=mount)),
            }
        case "nixl":
            pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
        case "aibrix":
            require_aibrix()
    return {"backend": backend, "path": path}
