"""A core with a stand-in for HostMemory, for tests of backups and loads."""

from typing import Any

from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(17))
OTHER = list(range(500, 517))


def driver_with(policy: WritePolicy = WritePolicy.WRITE_THROUGH, **changes: Any) -> CoreDriver:
    """`changes`: of the settings."""
    return CoreDriver(
        has_host_memory=True, write_policy=policy, prefill_budget_tokens=64, **changes
    )


def serve(driver: CoreDriver, tokens: list[int], **fields: Any) -> str:
    """One request from beginning to end."""
    name = driver.submit(tokens, max_tokens=1, **fields)
    driver.run()
    return name


def evict_from_l1(driver: CoreDriver) -> None:
    """Drop all of it that no request holds: all of it, as none runs."""
    driver.send(events.FlushL1())
    assert driver.core.stats()["l1_cached_pages"] == 0
