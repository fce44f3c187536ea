"""What this machine has and lacks for one configuration."""

from collections.abc import Callable, Iterator

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.cli.config_check import check_config, machine_at_hand
from raydix.runtime.cli.doctor_storage import BackendReport
from raydix.runtime.cli.findings import Finding
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import L3Section, RedisL3Section
from raydix.runtime.storage.trial import find_obstacle


def examine_config(
    config: EngineConfig,
    num_gpus: int,
    backends: tuple[BackendReport, ...],
    find_obstacle: Callable[[L3Section], str | None] = find_obstacle,
) -> Iterator[Finding]:
    """Whether the model can be sized, fits, has its GPUs, and whether L3 answers from here."""
    yield from _size(config)

    needed = config.parallel.num_ranks
    if config.model.device == "cuda":
        is_there = num_gpus >= needed
        remedy = (
            "" if is_there else "; lower parallel.dp or parallel.tp, or join a cluster with more"
        )
        yield Finding("config: GPUs", is_there, f"{num_gpus} here, {needed} needed{remedy}")

    section = config.cache.l3
    if section is not None:
        yield _storage(section, backends, find_obstacle)


def _storage(
    section: L3Section,
    backends: tuple[BackendReport, ...],
    find_obstacle: Callable[[L3Section], str | None],
) -> Finding:
    # Redis needs no library, and its server may be anywhere.
    for report in () if isinstance(section, RedisL3Section) else backends:
        if report.name == section.backend and not report.is_usable:
            return Finding("config: cache.l3", False, f"{report.name}: {report.detail}")

    obstacle = find_obstacle(section)
    return Finding(
        "config: cache.l3",
        obstacle is None,
        f"{section.backend}: {'can be opened, and answers' if obstacle is None else obstacle}",
        is_optional=section.lazy,
    )


def _size(config: EngineConfig) -> Iterator[Finding]:
    try:
        report = check_config(config, machine_at_hand(config))
    except (CheckpointError, ConfigError) as error:
        yield Finding("config: size", False, str(error))
        return

    sizes = report.sizes
    told = f"{format_bytes(sizes.weight_bytes)} of weights"
    if sizes.l1_bytes is not None:
        told += f", {format_bytes(sizes.l1_bytes)} of L1 per rank"
    if sizes.arena_bytes is not None:
        told += f", {format_bytes(sizes.arena_bytes)} of L2"
    if not report.problems:
        yield Finding("config: size", True, f"{told}; raydix config check tells more")
    for number, problem in enumerate(report.problems, start=1):
        yield Finding(f"config: size, {number}", False, problem)
