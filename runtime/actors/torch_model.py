"""The real model of a GPU actor: a checkpoint on one device, with its KV pools."""

import itertools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from raydix.kernels.fixed_order.choice import choose_fixed_ops
from raydix.kernels.ops import choose_ops, import_gpu_ops
from raydix.moe.bank import ExpertBank
from raydix.runtime.actors.cuda_timer import CudaTimer
from raydix.runtime.actors.expert_place import expert_ranks_of
from raydix.runtime.actors.first_times import FirstTimes
from raydix.runtime.actors.gpu_model import (
    Experts,
    ExpertsShape,
    GpuModel,
    HostTimer,
    LoadedGpuModel,
    LoadReport,
    NoExperts,
    RankPlace,
)
from raydix.runtime.actors.kept_model import KeptModel, PreparedModel, addresses_of
from raydix.runtime.actors.kernel_build import KernelBuild
from raydix.runtime.actors.page_room import pages_with_room
from raydix.runtime.actors.rank_device import open_device
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import FP8_DTYPE
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.policies import Overlap
from raydix.runtime.config.pool_sizes import max_context_pages
from raydix.runtime.garbage import nothing_collected
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.checkpoint.hub import checkpoint_folder, settings_folder
from raydix.runtime.model.checkpoint.kv_scales import load_kv_scales
from raydix.runtime.model.collectives.meeting import meet
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.experts.rank_experts import RankExperts
from raydix.runtime.model.spec.fixed_order import require_fixed_order
from raydix.runtime.model.spec.kv_groups import KvGrouping, derive_kv_groups
from raydix.runtime.model.steps.halving import Halving
from raydix.runtime.model.steps.overlap_times import step_times
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.phases import phase
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.parked_weights import ParkedWeights
from raydix.runtime.tiers.peer_pools import make_peer_pools
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferEngine

logger = logging.getLogger(__name__)


def load_gpu_model(
    config: EngineConfig,
    place: RankPlace,
    group_layers: KvGrouping = derive_kv_groups,
    checkpoint: CheckpointConfig | None = None,
    build: KernelBuild | None = None,
) -> LoadedGpuModel:
    """Meet the ranks that this one steps with, and load its part of the checkpoint.

    `group_layers`: see `derive_kv_groups`. `checkpoint`: the model's, if it has been read. `build`:
    of its kernels, which has begun; None: they are compiled as steps are tried. Raises
    CheckpointError or ConfigError.
    """
    kernels = FirstTimes()
    if config.model.device == "cuda":
        with phase(logger, "kernels imported"), nothing_collected():
            import_gpu_ops()
    with phase(logger, "device opened"):
        device = open_device(config, place.device_index)
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    collectives = _meet_lane(config, place, device, dtype)
    loaded = _load_weights(
        config,
        checkpoint,
        device=device,
        dtype=dtype,
        collectives=collectives,
        expert_ranks=expert_ranks_of(config, place, device),
        group_layers=group_layers,
    )

    with phase(logger, "weights given addresses of their own"):
        weights = ParkedWeights(_tensors_of(loaded), device)

    layout = loaded.kv_layout(config.cache.page_size, config.kv_dtype, config.cache.codec)
    shard = KvShard(layout=layout, rank=collectives.rank, num_ranks=collectives.size)
    step_bytes, halving = 0, Halving(_overlap(config, loaded))
    if device.type == "cuda":
        kernels.load(build)
        step_bytes, halving = _warm_up(config, loaded, shard, device, f"{place.meeting}-overlap")
    mapped_bytes = sum(region.mapped_bytes for region in weights.regions)
    num_pages = pages_with_room(
        config, shard, step_bytes + mapped_bytes, device, buffer_bytes=_buffer_bytes(loaded)
    )
    spells = itertools.count()

    def make(num_pages: tuple[int, ...]) -> PreparedModel:
        # Ranks make pools together, each time, and what they left in a file means nothing later.
        file = _lane_file(config, place, f"pools{next(spells)}")
        made = partial(_prepare, config, loaded, weights, shard, halving=halving, kernels=kernels)
        return made(file, num_pages)

    return LoadedGpuModel(
        report=_report(loaded, shard, num_pages),
        prepare=KeptModel(make, weights, device).prepare,
        weights=weights,
    )


def _meet_lane(
    config: EngineConfig, place: RankPlace, device: torch.device, dtype: torch.dtype
) -> Collectives:
    """Wait for the ranks of the lane."""
    tp = config.parallel.tp
    file = _lane_file(config, place, "sums")
    collectives = meet(file, place.rank % tp, tp, device=device, dtype=dtype)
    if collectives.size > 1:
        logger.info("rank %d has met its lane of %d", place.rank, collectives.size)
    return collectives


def _load_weights(
    config: EngineConfig, checkpoint: CheckpointConfig | None, **arguments: Any
) -> LoadedModel:
    """Make the decoder and fill it. `arguments`: those of `load_model` that are not named here."""
    is_dummy = config.model.load_format == "dummy"
    load, find = (
        (make_dummy_model, settings_folder) if is_dummy else (load_model, checkpoint_folder)
    )
    with phase(logger, "model found"):
        folder = find(config.model.path)
    device: torch.device = arguments["device"]
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    checkpoint = (checkpoint or read_checkpoint_config(folder)).served(
        config.quantization, device.type, capability
    )
    choose = choose_ops
    if config.model.deterministic:
        require_fixed_order(checkpoint.spec)
        choose = choose_fixed_ops
    with phase(logger, "weights drawn" if is_dummy else "weights read"):
        bounded = checkpoint.up_to(config.model.max_model_len)
        loaded = load(folder, config=bounded, choose=choose, **arguments)
        if config.kv_dtype == FP8_DTYPE and not is_dummy:
            loaded = load_kv_scales(loaded, folder)
        if loaded.decoder.device.type == "cuda":
            # Those that are still being copied, or drawn, are not there yet.
            torch.cuda.synchronize(loaded.decoder.device)
    return loaded


def _lane_file(config: EngineConfig, place: RankPlace, purpose: str) -> Path | None:
    """The file by which the ranks of a lane meet; the lanes of a step group have one each."""
    lane = place.rank // config.parallel.tp
    return None if place.meeting is None else Path(f"{place.meeting}-lane{lane}-{purpose}")


def _prepare(
    config: EngineConfig,
    loaded: LoadedModel,
    weights: ParkedWeights,
    shard: KvShard,
    meeting: Path | None,
    num_pages: tuple[int, ...],
    *,
    halving: Halving,
    kernels: FirstTimes,
) -> PreparedModel:
    """Make the pools, then capture graphs, as `LoadedGpuModel.prepare` says."""
    device = loaded.decoder.device
    with phase(logger, "pools made"):
        made = make_peer_pools(shard, num_pages, device, meeting)
    is_chunked = config.scheduler.chunked_prefill_tokens is not None
    num_context = max_context_pages(shard.layout, num_pages, is_chunked=is_chunked)
    max_model_len = config.max_model_len(loaded.max_position_embeddings, num_context)
    runner = _make_runner(config, loaded, made.pools, max_model_len, device, halving=halving)
    if loaded.decoder.is_capturable:
        with phase(logger, "graphs captured"):
            runner.capture_graphs()

    def make_transfers(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
        if device.type == "cuda":
            return CudaTransfers(
                shard, made.pools, arena, on_done=on_done, on_error=on_error, peers=made.cuda
            )
        return CpuTransfers(
            shard,
            made.pools,
            arena,
            on_done=on_done,
            on_error=on_error,
            copy_delay_s=config.cache.l1.copy_delay_s,
            seed=shard.rank,
            peers=made.cpu,
        )

    model = GpuModel(
        runner=runner,
        make_timer=CudaTimer if device.type == "cuda" else HostTimer,
        make_transfers=make_transfers,
        make_experts=partial(_make_experts, config, loaded),
        enter_thread=partial(_enter_thread, device),
        beside_steps=_beside_steps(device),
        rehearse=partial(kernels.rehearse, runner) if device.type == "cuda" else _nothing,
        stats=lambda: _stats(runner, halving) | kernels.stats(),
        close=loaded.decoder.close,
        pool_bytes=sum(pool.nbytes for pool in made.pools),
    )
    return PreparedModel(
        model=model,
        runner=runner,
        made=made,
        num_pages=num_pages,
        addresses=addresses_of(made, weights),
    )


def _tensors_of(loaded: LoadedModel) -> list[torch.Tensor]:
    return [*loaded.decoder.parameters(), *loaded.decoder.buffers()]


def _buffer_bytes(loaded: LoadedModel) -> int:
    """What tokens on their way to experts of other ranks take of the device."""
    experts = loaded.decoder.experts
    return 0 if experts is None else experts.dispatcher.buffer_bytes


def _beside_steps(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Return what enters a stream without steps, on CUDA; elsewhere steps have ended already."""
    if device.type != "cuda":
        return nullcontext
    return partial(torch.cuda.stream, torch.cuda.Stream(device))


def _nothing() -> None:
    """Devices without kernels have nothing to rehearse."""


def _stats(runner: ModelRunner, halving: Halving) -> dict[str, Any]:
    return {"num_halved_steps": runner.num_halved_steps, "overlap": halving.stats()}


def _make_experts(config: EngineConfig, loaded: LoadedModel, on_error: OnError) -> Experts:
    decoder = loaded.decoder
    if decoder.experts is None:
        return NoExperts()
    return RankExperts(
        decoder.experts,
        loaded.stored_experts,
        decoder.device,
        load_interval_steps=config.experts.load_interval_steps,
        on_error=on_error,
    )


def _make_runner(
    config: EngineConfig,
    loaded: LoadedModel,
    pools: tuple[torch.Tensor, ...],
    max_model_len: int,
    device: torch.device,
    *,
    halving: Halving,
) -> ModelRunner:
    return ModelRunner(
        loaded.decoder,
        pools,
        page_size=config.cache.page_size,
        max_slots=config.scheduler.max_running_requests,
        max_model_len=max_model_len,
        max_prefill_tokens=config.scheduler.prefill_budget,
        device=device,
        is_halved=halving.includes,
    )


def _overlap(config: EngineConfig, loaded: LoadedModel) -> Overlap:
    """Which steps may be halved: none where layers keep states.

    A half may end within a row, where no page is kept from which the other half could go on.
    """
    overlap = config.experts.overlap
    if not loaded.decoder.has_states:
        return overlap
    if overlap is Overlap.ON:
        logger.warning("experts.overlap is on; steps of layers that keep states are never halved")
    return Overlap.OFF


def _warm_up(
    config: EngineConfig,
    loaded: LoadedModel,
    shard: KvShard,
    device: torch.device,
    meeting: str,
) -> tuple[int, Halving]:
    """Run the largest steps over a pool of padding, so that every kernel is compiled.

    Returns the bytes that steps need beside weights and pages, captured graphs included, and which
    steps are to be halved. `meeting`: the file of `step_times`.
    """
    max_positions = loaded.max_position_embeddings
    max_model_len = min(config.model.max_model_len or max_positions, max_positions)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_reserved(device)
    pools = make_pools(shard, [1] * len(shard.layout.groups), device)
    overlap = _overlap(config, loaded)
    halving = Halving(overlap)
    runner = _make_runner(config, loaded, pools, max_model_len, device, halving=halving)
    with phase(logger, "kernels compiled, steps tried"):
        runner.warm_up()
        torch.cuda.synchronize(device)
    if overlap is not Overlap.OFF and loaded.decoder.experts is not None:
        halving = Halving(overlap, step_times(runner, loaded.decoder, Path(meeting)))
    torch.cuda.synchronize(device)
    # Reserved, not allocated, memory counts, because steps of many sizes leave gaps.
    peak_bytes = torch.cuda.max_memory_reserved(device) - before_bytes

    if config.cache.l1.num_pages is not None:
        # Nobody asks what room is left.
        return peak_bytes, halving
    # Graphs keep the memory of captured steps; a prompt's step needs its own beside that.
    torch.cuda.empty_cache()
    before_bytes = torch.cuda.memory_reserved(device)
    with phase(logger, "graphs measured"):
        runner.capture_graphs()
    return peak_bytes + torch.cuda.memory_reserved(device) - before_bytes, halving


def _report(loaded: LoadedModel, shard: KvShard, num_pages: tuple[int, ...]) -> LoadReport:
    return LoadReport(
        fingerprint=loaded.fingerprint,
        layout=shard.layout,
        num_pages=num_pages,
        max_position_embeddings=loaded.max_position_embeddings,
        vocab_size=loaded.spec.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
        experts=_experts_shape(loaded),
    )


def _experts_shape(loaded: LoadedModel) -> ExpertsShape | None:
    if loaded.decoder.experts is None:
        return None
    decoder = loaded.decoder
    placement = loaded.decoder.experts.placement
    bank = next(each for each in decoder.modules() if isinstance(each, ExpertBank))
    weights = bank.tensors(0)
    return ExpertsShape(
        num_layers=placement.num_layers,
        num_experts=placement.num_experts,
        expert_bytes=sum(weight.nbytes for weight in weights),
        expert_parameters=sum(weight.numel() for weight in weights),
        row_bytes=decoder.spec.hidden_size * decoder.dtype.itemsize,
    )


def _enter_thread(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
