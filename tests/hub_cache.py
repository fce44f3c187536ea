"""A cache of the Hugging Face Hub's library without the Hub."""

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for this process and those that are told its environment; all are offline."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Which the library has read when it was imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def lay_out(cache: Path, source: Path) -> Path:
    """Put a checkpoint into the cache as `org/name`, as the library does; returns its snapshot."""
    model = cache / "models--org--name"
    snapshot = model / "snapshots" / COMMIT
    for folder in (snapshot, model / "blobs", model / "refs"):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)

    for number, file in enumerate(sorted(source.iterdir())):
        blob = model / "blobs" / f"{number:040x}"
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / blob.name)
    return snapshot
