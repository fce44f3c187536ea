from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtime.server.scripted_server import (
    THINKING_TEMPLATE,
    ScriptedModel,
    scripted_serving,
)
from tests.runtime.server.served_engine import Server, serving, write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("served"))


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[Server]:
    """A server without keys."""
    async with serving(checkpoint) as server:
        yield server


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Server, ScriptedModel]]:
    """A server whose model says what the test tells it, and may reason before."""
    async with scripted_serving(write_checkpoint(tmp_path), THINKING_TEMPLATE) as served:
        yield served
