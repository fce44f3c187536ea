"""What a configuration asks for, as the simulator takes it."""

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.actors.supervision.core_settings import host_settings, scheduler_settings
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import BoundedL3Section
from raydix.runtime.foresight.simulator.node import NodeSettings
from raydix.runtime.foresight.simulator.simulation import KillKind, Service


def service_of(
    config: EngineConfig,
    sizes: EngineSizes,
    vocab_size: int,
    *,
    num_nodes: int = 1,
    kills: tuple[tuple[KillKind, int], ...] = (),
) -> Service:
    """A service of engines with this configuration, one on each node.

    Raises ConfigError for what cannot be simulated.
    """
    if config.parallel.ep > 1:
        raise ConfigError(
            f"parallel.ep is {config.parallel.ep}; expected 1, as ranks that share experts are not "
            "simulated. Set parallel.ep to 1."
        )
    num_hosts = sum(count for kind, count in kills if kind is KillKind.HOST)
    if num_hosts and not config.has_l2:
        raise ConfigError(
            f"--kill is host={num_hosts}, and cache.l2 is off, so there is no HostMemory; expected "
            "rank, engine or node. Leave it out, or set cache.l2."
        )
    if sizes.num_pages is None or sizes.max_model_len is None:
        raise ConfigError(
            "cache.l1.num_pages depends on a GPU that is not here. Say how much memory it has with "
            "--gpu-memory, or set cache.l1.num_pages."
        )
    cache = config.cache
    scheduler = scheduler_settings(
        config, sizes.layout, sizes.num_pages, sizes.max_model_len, vocab_size
    )
    node = NodeSettings(
        scheduler=scheduler,
        host=host_settings(config, sizes.layout) if config.has_l2 else None,
        arena_bytes=sizes.arena_bytes or 0,
        with_pulls=cache.l2 is not None and cache.l2.pull is not None,
        roles=(config.role,),
    )
    l3 = cache.l3
    return Service(
        node=node,
        num_nodes=num_nodes,
        has_storage=config.has_l3,
        max_storage_bytes=l3.max_bytes if isinstance(l3, BoundedL3Section) else None,
        kills=kills,
    )
