from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent_frameworks.agent_server import agent_serving


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Where a server listens whose model is an agent with two tools."""
    async with agent_serving(tmp_path) as url:
        yield url
