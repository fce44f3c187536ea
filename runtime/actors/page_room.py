"""How many pages of L1 a rank's device has room for, once weights and steps have theirs."""

from collections.abc import Sequence

import torch

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.config.pool_sizes import largest_pools, pool_pages
from raydix.runtime.model.experts.dispatch_room import BUFFER_ADVICE


def pages_with_room(
    config: EngineConfig,
    shard: KvShard,
    step_bytes: int,
    device: torch.device,
    *,
    buffer_bytes: int = 0,
) -> tuple[int, ...]:
    """Usable pages of each KV group: as many as are configured, or as there is room for.

    `step_bytes`: what steps need on the device beside weights and pages; `buffer_bytes`: what
    tokens on their way to other ranks do. Torch's allocator knows of neither. Raises ConfigError if
    that leaves no page, or memory has no room for the configured number.
    """
    layout, l1 = shard.layout, config.cache.l1
    page_bytes = [shard.page_bytes(group) for group in range(len(layout.groups))]
    if l1.num_pages is not None:
        if device.type == "cpu":
            _require_memory(config, layout, page_bytes, l1.num_pages)
        return pool_pages(config, layout, l1.num_pages)
    assert l1.memory_fraction is not None, "the configuration has one of the two"
    torch.cuda.empty_cache()
    total_bytes = torch.cuda.get_device_properties(device).total_memory

    held_bytes = torch.cuda.memory_reserved(device) + step_bytes + buffer_bytes
    free_bytes = int(l1.memory_fraction * total_bytes) - held_bytes
    num_pages = largest_pools(config, layout, page_bytes, free_bytes)
    if num_pages < 1:
        raise ConfigError(
            f"cache.l1.memory_fraction {l1.memory_fraction} of {total_bytes} bytes leaves "
            f"{free_bytes} bytes for KV after the weights, the largest steps{_told(buffer_bytes)}; "
            f"expected room for a page. Raise it, {_advised(buffer_bytes)}or use a smaller model."
        )
    return pool_pages(config, layout, num_pages)


def _told(buffer_bytes: int) -> str:
    return f" and {buffer_bytes} bytes of buffers of experts.dispatch" if buffer_bytes else ""


def _advised(buffer_bytes: int) -> str:
    return f"{BUFFER_ADVICE}, " if buffer_bytes else ""


def _require_memory(
    config: EngineConfig, layout: KvLayout, page_bytes: Sequence[int], num_pages: int
) -> None:
    """Ask first, because the system hands out memory that it may not have."""
    available = available_memory_bytes()
    most = largest_pools(config, layout, page_bytes, available)
    if num_pages > most:
        raise ConfigError(
            f"cache.l1.num_pages is {num_pages}; at {sum(page_bytes)} bytes a page of all layers "
            f"that is more than the {available} bytes that are available. Set cache.l1.num_pages "
            f"to at most {most}."
        )
