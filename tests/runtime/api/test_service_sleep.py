"""Several engines behind one handle sleep and wake together."""

import pytest

from raydix.errors import BadRequest
from tests.runtime.api.test_service import service

__all__ = ["service"]


async def test_all_engines_sleep_and_wake_together_and_tell_their_phases(cluster, service):
    cluster.engines["b"].is_dead = True
    for asked_for, method in (
        (service.sleep(True), "fall_asleep"),
        (service.wake(), "wake"),
        (service.phase_by_engine(), "phase"),
    ):
        assert await asked_for == {"a": {"method": method}, "b": None, "c": {"method": method}}
    with pytest.raises(BadRequest, match="weights"):
        await service.sleep("yes")
