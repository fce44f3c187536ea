import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.cli import main as cli
from tests.hollow_checkpoint import make_hollow
from tests.runtime.api.fake_engine import FakeCluster
from tests.runtime.api.small_tokenizers import byte_level_backend


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `raydix ARGUMENTS`; its exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["raydix", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0)

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer, which an engine that is a script takes for a checkpoint."""
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    byte_level_backend().save_pretrained(folder)
    return str(make_hollow(folder))


@pytest.fixture
def cluster(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Engines that are scripts, behind the real client."""
    cluster = FakeCluster(checkpoint)
    cluster.install(monkeypatch)
    return cluster
