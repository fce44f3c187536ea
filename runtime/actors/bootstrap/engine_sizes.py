"""What an engine will take of its node and devices, known before any rank starts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.errors import ConfigError
from raydix.runtime.actors.bootstrap.device_needs import DeviceNeeds, device_needs
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.config.capacity import format_bytes, host_bytes_per_node, require_room_in_l3
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.pool_sizes import largest_pools, max_context_pages, pool_pages
from raydix.runtime.model.checkpoint.hub import require_folder, settings_folder

if TYPE_CHECKING:
    from raydix.runtime.model.checkpoint.model_sizes import ModelSizes
    from raydix.runtime.model.formats.definition import Quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """Bytes and pages, all ranks being alike."""

    layout: KvLayout
    needs: DeviceNeeds
    """What a rank takes of its device beside L1."""
    num_pages: tuple[int, ...] | None
    """Usable L1 pages of a rank by KV group; None where the device's memory decides, if unknown."""
    l1_bytes: int | None
    """The bytes of one rank's L1."""
    max_model_len: int | None
    arena_bytes: int | None
    """None without L2."""
    expert_store_bytes: int
    """The bytes of the node's store of experts, on GPUs as they were measured for."""
    kept_store_bytes: int | None = None
    """The same on GPUs that keep float8 which others restore; None: nothing else is known."""

    @property
    def device_bytes(self) -> int | None:
        """What a rank takes of its device."""
        return None if self.l1_bytes is None else self.needs.num_bytes + self.l1_bytes


def measure_checkpoint(
    config: EngineConfig, capability: tuple[int, int] | None = None
) -> "ModelSizes":
    """Sizes of the configured model by its config.json alone; slow, as it imports torch.

    capability: that of its GPUs; None: of the one that is here, if there is one. Raises
    CheckpointError, or ConfigError if the model cannot be divided among so many ranks.
    """
    # What is missing is told at once.
    folder = settings_folder(config.model.path)
    require_folder(folder)
    # Imported here: torch takes seconds, and clients that merely connect should not wait for it.
    from raydix.runtime.model.checkpoint.model_sizes import measure_model
    from raydix.runtime.model.spec.fixed_order import require_fixed_order

    sizes = measure_model(
        folder,
        dtype=config.model.dtype,
        tp=config.parallel.tp,
        page_size=config.cache.page_size,
        kv_dtype=config.kv_dtype,
        codec=config.cache.codec,
        way=config.quantization,
        device=config.model.device,
        capability=capability,
    )
    if config.model.deterministic:
        require_fixed_order(sizes.checkpoint.spec)
    return sizes


def size_engine(
    config: EngineConfig, model: "ModelSizes", total_device_bytes: int | None = None
) -> EngineSizes:
    """What the engine takes in each tier.

    total_device_bytes: memory of each rank's GPU, if known. Raises ConfigError for what does not
    fit.
    """
    parallel, cache = config.parallel, config.cache
    require_room_in_l3(config, model.layout)
    needs = device_needs(config, model)
    shard = KvShard(layout=model.layout, num_ranks=parallel.tp)
    quantisation = model.checkpoint.quantisation
    num_pages = _num_pages(config, shard, needs, total_device_bytes, quantisation)

    max_model_len = arena_bytes = l1_bytes = None
    if num_pages is not None:
        is_chunked = config.scheduler.chunked_prefill_tokens is not None
        num_context = max_context_pages(model.layout, num_pages, is_chunked=is_chunked)
        max_model_len = config.max_model_len(model.max_position_embeddings, num_context)
        arena_bytes = host_bytes_per_node(config, model.layout, num_pages, parallel.dp)
        # One page of each group is padding.
        l1_bytes = sum(
            (pages + 1) * shard.page_bytes(group) for group, pages in enumerate(num_pages)
        )
    elif config.has_l2 and cache.l2 is not None:
        arena_bytes = cache.l2.bytes_per_node
    if arena_bytes is not None:
        # HostMemory would refuse one without room for a page, but only once it has started.
        plan_arena(model.layout, arena_bytes)

    return EngineSizes(
        layout=model.layout,
        needs=needs,
        num_pages=num_pages,
        l1_bytes=l1_bytes,
        max_model_len=max_model_len,
        arena_bytes=arena_bytes,
        expert_store_bytes=model.all_expert_bytes if config.stores_experts else 0,
    )


def _num_pages(
    config: EngineConfig,
    shard: KvShard,
    needs: DeviceNeeds,
    total_device_bytes: int | None,
    quantisation: "Quantisation",
) -> tuple[int, ...] | None:
    """Pages of each KV group; None if they depend on a device that is not known."""
    l1, layout = config.cache.l1, shard.layout
    page_bytes = [shard.page_bytes(group) for group in range(len(layout.groups))]
    if l1.num_pages is not None:
        return pool_pages(config, layout, l1.num_pages)
    if total_device_bytes is None or l1.memory_fraction is None:
        return None

    free_bytes = int(l1.memory_fraction * total_device_bytes) - needs.num_bytes
    num_pages = largest_pools(config, layout, page_bytes, free_bytes) if free_bytes > 0 else 0
    if num_pages < 1:
        may_stay = quantisation.restores_what_could_stay
        native = (
            "set model.quantization to native, where weights stay small (auto keeps float8 on H100 "
            "and H200), " * may_stay
        )
        smaller = ""
        if needs.buffer_bytes:
            # Imported here because it takes seconds.
            from raydix.runtime.model.experts.dispatch_room import BUFFER_ADVICE

            smaller = f"{BUFFER_ADVICE}, "
        raise ConfigError(
            f"cache.l1.memory_fraction {l1.memory_fraction} of {format_bytes(total_device_bytes)} "
            f"leaves too little for KV, as {needs}; expected room for a page. Raise it, raise "
            f"parallel.tp, {native}{smaller}or use a larger device."
        )
    return pool_pages(config, layout, num_pages)
