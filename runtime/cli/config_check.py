"""What a configuration asks for, tier by tier, and what of it does not fit: nothing is started."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.actors.bootstrap.engine_sizes import (
    EngineSizes,
    measure_checkpoint,
    size_engine,
)
from raydix.runtime.actors.kv_sockets import read_certificate
from raydix.runtime.cli.gpu_kinds import GPUS, named_gpu
from raydix.runtime.cli.output import print_json, standard_output
from raydix.runtime.cli.pull_transport import ChosenTransport, chosen_transport
from raydix.runtime.config.capacity import effective_summary, format_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.config.storage_libraries import missing_library
from raydix.runtime.model.checkpoint.hub import settings_folder

if TYPE_CHECKING:
    from raydix.runtime.model.checkpoint.model_sizes import ModelSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the engine's node has; None: not known, so nothing is compared with it."""

    device_bytes: int | None
    """Memory of each GPU."""
    capability: tuple[int, int] | None = None
    """The compute capability of GPUs that are elsewhere; None: that of those here, if any."""
    node_bytes: int | None
    """Memory that the node can still give."""
    num_cpus: int | None
    is_engines: bool = True
    """Whether an engine is to run here, so that files which it needs must be here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    sizes: EngineSizes
    weight_format: str
    """The format and the way of the checkpoint's weights."""
    stored_bytes: int | None
    """The bytes of the weights' files; None if they are not here."""
    summary: str
    pull: ChosenTransport | None
    """What would carry the pages of other nodes, were they like this machine; None: nothing would.
    """
    problems: tuple[str, ...]
    """Each says what does not fit."""

    def figures(self) -> dict[str, Any]:
        """The figures under names that programs read."""
        sizes = self.sizes
        return {
            "weight_bytes_per_rank": sizes.needs.weight_bytes,
            "weight_format": self.weight_format,
            "stored_weight_bytes": self.stored_bytes,
            "step_bytes_per_rank": sizes.needs.step_bytes,
            "graph_bytes_per_rank": sizes.needs.graph_bytes,
            "dispatch_bytes_per_rank": sizes.needs.buffer_bytes,
            "l1_pages_per_rank": sizes.num_pages,
            "l1_bytes_per_rank": sizes.l1_bytes,
            "l2_bytes_per_node": sizes.arena_bytes,
            "expert_store_bytes_per_node": sizes.expert_store_bytes,
            "token_bytes": sizes.layout.token_bytes,
            "max_model_len": sizes.max_model_len,
            "pull_transport": None if self.pull is None else self.pull.transport,
            "pull_transport_why": None if self.pull is None else self.pull.why,
            "problems": self.problems,
        }


def print_report(
    config: EngineConfig,
    *,
    gpu: str | None = None,
    device_bytes: int | None = None,
    node_bytes: int | None = None,
    as_json: bool = False,
) -> None:
    """Print what an engine takes. Raises ConfigError, after that, for what does not fit.

    gpu: one of GPUS; device_bytes, node_bytes: as of `Machine`; None: those of this machine, where
    it could be the engine's.
    """
    with standard_output(as_json) as (console, stdout):
        kind = None if gpu is None else named_gpu(gpu)
        if kind is not None and device_bytes is not None:
            raise ConfigError("--gpu and --gpu-memory both say what a GPU has. Leave one out.")
        if kind is not None:
            device_bytes = kind.num_bytes
        machine = machine_at_hand(config, device_bytes, node_bytes)
        if kind is not None:
            machine = replace(machine, capability=kind.capability)
        report = check_config(config, machine)
        if as_json:
            print_json(report.figures(), stdout)
        else:
            console.print(report.summary, markup=False, highlight=False, soft_wrap=True)
    if report.problems:
        raise ConfigError(" ".join(report.problems))


def machine_at_hand(
    config: EngineConfig, device_bytes: int | None = None, node_bytes: int | None = None
) -> Machine:
    """What was given, and else what this machine has.

    Raises ConfigError for the memory of a GPU where none is used.
    """
    is_cpu, num_cpus = config.model.device == "cpu", None
    if is_cpu and device_bytes is not None:
        raise ConfigError(
            "--gpu-memory or --gpu is given, but model.device is cpu, where no GPU is used. Set "
            "model.device to cuda (--set model.device=cuda), or leave it out."
        )
    if not is_cpu and device_bytes is None:
        device_bytes = _own_device_bytes()
        is_here = device_bytes is not None
    else:
        is_here = is_cpu

    if is_here and node_bytes is None:
        node_bytes, num_cpus = available_memory_bytes(), len(os.sched_getaffinity(0))
    return Machine(
        device_bytes=device_bytes, node_bytes=node_bytes, num_cpus=num_cpus, is_engines=is_here
    )


def _own_device_bytes() -> int | None:
    """Memory of the smallest GPU here; None without one."""
    # Imported here because it takes seconds.
    import torch

    devices = range(torch.cuda.device_count())
    return min(
        [torch.cuda.get_device_properties(device).total_memory for device in devices], default=None
    )


def check_config(config: EngineConfig, machine: Machine) -> Report:
    """Size an engine. Raises CheckpointError or ConfigError if that cannot be done at all."""
    model = measure_checkpoint(config, machine.capability)
    problems: list[str] = []
    if machine.capability is not None and (lacking := _lacking_key(config, machine.capability)):
        problems.append(f"The GPU has no {lacking}.")
    try:
        sizes = size_engine(config, model, machine.device_bytes)
    except ConfigError as error:
        # Without that device it has sizes all the same; if not, nothing can be told.
        sizes = size_engine(config, model)
        problems.append(str(error))

    problems += _wrong_weights(config, model)
    problems += _overflows(config, sizes, machine)
    if machine.is_engines:
        problems += _missing_here(config)
    pull = chosen_transport(config)
    return Report(
        sizes=sizes,
        weight_format=model.checkpoint.quantisation.description,
        stored_bytes=model.stored_bytes,
        summary="\n".join([*_lines(config, model, sizes, machine), *_pull_lines(pull)]),
        pull=pull,
        problems=tuple(problems),
    )


def _lines(
    config: EngineConfig, model: "ModelSizes", sizes: EngineSizes, machine: Machine
) -> Iterator[str]:
    if sizes.num_pages is not None:
        yield effective_summary(config, sizes.layout, sizes.num_pages)
    else:
        yield f"model  {config.model.path}: {sizes.layout.token_bytes:,} bytes of KV per token"
        if sizes.layout.has_states:
            yield f"states {format_bytes(sizes.layout.state_bytes)} each, of all layers together"

    read = "" if model.stored_bytes is None else f", {format_bytes(model.stored_bytes)} to read"
    stored = model.checkpoint.quantisation.description
    yield f"weights {format_bytes(sizes.needs.weight_bytes)} per rank; stored as {stored}{read}"
    if sizes.needs.step_bytes:
        step, graphs = map(format_bytes, (sizes.needs.step_bytes, sizes.needs.graph_bytes))
        yield f"steps  about {step} per rank, and about {graphs} that captured ones keep"
    if sizes.needs.buffer_bytes:
        yield (
            f"dispatch {format_bytes(sizes.needs.buffer_bytes)} per rank, buffers for tokens on "
            "their way to experts of other ranks"
        )
    if sizes.expert_store_bytes:
        yield f"experts {format_bytes(sizes.expert_store_bytes)} in the node's memory"
    if sizes.max_model_len is not None:
        yield f"context at most {sizes.max_model_len:,} tokens per request"
    yield f"node   {format_bytes(_node_bytes(config, sizes))} of its memory"

    if config.has_l3:
        library = "" if machine.is_engines else ", nor is its library looked for"
        yield f"L3 is not asked here{library}; raydix doctor tries whether it answers"

    if config.cache.events is not None and config.cache.events.curve and not machine.is_engines:
        yield "cache.events.curve is not read here, where the engine will not run"

    if config.model.device == "cuda":
        yield from _unknown_kind_lines(config, model, machine)
        for name, gpu in GPUS.items():
            lacking = _lacking_key(config, gpu.capability)
            if lacking is None:
                own = _measured_on(config, model, gpu.capability)
                fit = _fit(config, own, gpu.num_bytes)
                if own.checkpoint.quantisation.way != model.checkpoint.quantisation.way:
                    fit += f" (way: {own.checkpoint.quantisation.way})"
            else:
                fit = f"has no {lacking}"
            yield f"  {name}: {fit}"


def _unknown_kind_lines(
    config: EngineConfig, model: "ModelSizes", machine: Machine
) -> Iterator[str]:
    """What the figures would be on a GPU that keeps what others restore, if that is not told."""
    # Imported here because it takes seconds.
    import torch

    from raydix.runtime.model.checkpoint.native_weights import KERNEL_CAPABILITY

    if machine.capability is not None or torch.cuda.is_available():
        return
    kept = _measured_on(config, model, KERNEL_CAPABILITY)
    if kept.checkpoint.quantisation.way == model.checkpoint.quantisation.way:
        return
    weights = format_bytes(size_engine(config, kept).needs.weight_bytes)
    fit = ""
    if machine.device_bytes is not None:
        fit = (
            f"; with {format_bytes(machine.device_bytes)} it "
            f"{_fit(config, kept, machine.device_bytes)}"
        )
    yield (
        "kind   the kind of GPU is not known, so float8 counts as restored; H100 and H200 keep it: "
        f"{weights} of weights per rank{fit}. --gpu says the kind"
    )


def _measured_on(
    config: EngineConfig, model: "ModelSizes", capability: tuple[int, int]
) -> "ModelSizes":
    """The model as a GPU of this capability holds its weights, of which `model` may hold others."""
    served = model.checkpoint.served(config.quantization, "cuda", capability)
    if served.quantisation.way == model.checkpoint.quantisation.way:
        return model
    return measure_checkpoint(config, capability)


def _lacking_key(config: EngineConfig, capability: tuple[int, int]) -> str | None:
    """What is asked for, as key and value, that GPUs of this capability refuse at a start."""
    # Imported here because it takes seconds.
    from raydix.runtime.actors.expert_place import check_transport
    from raydix.runtime.actors.rank_device import check_kv_dtype
    from raydix.runtime.model.checkpoint.native_weights import kept_forms

    transport = config.experts.transport
    checks: dict[str, Callable[[], object]] = {
        "model.quantization native": lambda: kept_forms(config.quantization, "cuda", capability),
        "cache.kv_dtype fp8_e4m3": lambda: check_kv_dtype(config, capability, "the GPU"),
        "experts.transport fp8": lambda: check_transport(transport, capability),
    }
    for key, check in checks.items():
        try:
            check()
        except ConfigError:
            return key
    return None


def _pull_lines(pull: ChosenTransport | None) -> Iterator[str]:
    if pull is not None:
        yield f"pulls  from other nodes, as of this machine, by {pull}"


def _fit(config: EngineConfig, model: "ModelSizes", device_bytes: int) -> str:
    """Whether ranks fit GPUs of this kind, and the tokens that each then has room for."""
    try:
        sizes = size_engine(config, model, device_bytes)
    except ConfigError:
        return "does not fit"
    if sizes.device_bytes is None or sizes.device_bytes > device_bytes or sizes.num_pages is None:
        return "does not fit"
    num_tokens = max(sizes.num_pages) * sizes.layout.page_size
    return f"fits, with {num_tokens:,} tokens of L1 per rank"


def _overflows(config: EngineConfig, sizes: EngineSizes, machine: Machine) -> Iterator[str]:
    device_bytes, node_bytes = machine.device_bytes, machine.node_bytes
    if (
        config.model.device == "cuda"
        and device_bytes is not None
        and sizes.device_bytes is not None
        and sizes.device_bytes > device_bytes
    ):
        yield (
            f"a rank takes {format_bytes(sizes.device_bytes)} of its GPU, which has "
            f"{format_bytes(device_bytes)}. Lower cache.l1.num_pages, or raise parallel.tp."
        )

    needed = _node_bytes(config, sizes)
    if node_bytes is not None and needed > node_bytes:
        yield (
            f"the node gives {format_bytes(needed)} of its memory, of which "
            f"{format_bytes(node_bytes)} are free. Lower cache.l2.bytes_per_node or "
            "cache.l1.num_pages."
        )

    num_ranks, num_cpus = config.parallel.num_ranks, machine.num_cpus
    if num_cpus is not None and num_ranks > num_cpus:
        yield (
            f"{num_ranks} ranks need a CPU each; the node has {num_cpus}. Lower parallel.dp or "
            "parallel.tp."
        )


def _wrong_weights(config: EngineConfig, model: "ModelSizes") -> Iterator[str]:
    """What is wrong with the weights, by headers and lengths of their files; none are read.

    Nothing is told where some are not here: a config alone can be asked about.
    """
    if model.stored_bytes is None or config.model.load_format != "auto":
        return
    # Imported here because it takes seconds.
    from raydix.runtime.model.checkpoint.checkpoint import check_weights

    try:
        check_weights(settings_folder(config.model.path), model.checkpoint)
    except CheckpointError as error:
        yield str(error)


def _missing_here(config: EngineConfig) -> Iterator[str]:
    """What the engine needs on this machine, and is not there or cannot be read."""
    l3 = config.cache.l3 if config.has_l3 else None
    if l3 is not None and (missing := missing_library(l3)) is not None:
        yield missing
    if config.cache.events is None:
        return
    try:
        read_certificate(config.cache.events)
    except ConfigError as error:
        yield str(error)


def _node_bytes(config: EngineConfig, sizes: EngineSizes) -> int:
    """Memory of the node itself: the arena, the experts' store and, on cpu, all of each rank."""
    shared = (sizes.arena_bytes or 0) + sizes.expert_store_bytes
    if config.model.device == "cuda":
        return shared
    return shared + config.parallel.num_ranks * (sizes.needs.weight_bytes + (sizes.l1_bytes or 0))
