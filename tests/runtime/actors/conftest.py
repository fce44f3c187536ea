from collections.abc import AsyncIterator

import pytest

from tests.runtime.actors.gpu_rank import Rank


@pytest.fixture
async def rank() -> AsyncIterator[Rank]:
    """A GPU actor that has its model and pools, and does not serve yet."""
    made = Rank()
    report = await made.actor.load()
    await made.actor.prepare(report.num_pages)
    yield made
    await made.actor.shutdown()
