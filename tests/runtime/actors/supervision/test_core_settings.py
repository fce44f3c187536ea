"""Settings of the cores, from the configuration."""

from raydix.runtime.actors.supervision.core_settings import scheduler_settings
from raydix.runtime.config.loading import load_config
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.workload import BASE_SETTINGS

SLOWEST_LINK_BYTES_PER_S = 12e9
"""PCIe 3 with 16 lanes: what a GPU in use has at least."""


def settings_on(device: str) -> SchedulerSettings:
    cache = {"l2": {"bytes_per_node": "1GiB"}}
    config = load_config({"model": {"path": "somewhere", "device": device}, "cache": cache})
    return scheduler_settings(
        config, BASE_SETTINGS.layout, num_pages=(16,), max_model_len=64, vocab_size=8
    )


def test_a_link_is_believed_fast_until_a_load_has_told_how_fast() -> None:
    # A belief below the truth would let everything be computed, and would never be put right.
    assert settings_on("cuda").start_load_bytes_per_s > SLOWEST_LINK_BYTES_PER_S
