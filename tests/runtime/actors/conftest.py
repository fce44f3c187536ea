from collections.abc import AsyncIterator

import pytest

from tests.runtime.actors.gpu_rank import Rank


@pytest.fixture
async def rank() -> AsyncIterator[Rank]:
    """A GPU actor that has loaded its model and does not serve yet."""
    made = Rank()
    await made.actor.load()
    yield made
    await made.actor.shutdown()
