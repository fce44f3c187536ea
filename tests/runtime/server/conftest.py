from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtime.server.served_engine import Server, serving, write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("served"))


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[Server]:
    """A server without keys."""
    async with serving(checkpoint) as server:
        yield server
