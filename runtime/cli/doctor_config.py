"""What this machine has and lacks for one configuration."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.cli.config_check import check_config, machine_at_hand
from raydix.runtime.cli.doctor_storage import BackendReport
from raydix.runtime.cli.findings import Finding
from raydix.runtime.cli.pull_transport import chosen_transport
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import (
    FolderL3Section,
    L3Section,
    RedisL3Section,
)
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.storage.trial import find_obstacle


def examine_config(
    config: EngineConfig,
    num_gpus: int,
    backends: tuple[BackendReport, ...],
    find_obstacle: Callable[[L3Section], str | None] = find_obstacle,
) -> Iterator[Finding]:
    """Whether the model is whole, can be sized, fits, has its GPUs, and whether L3 answers here."""
    yield from _size(config)

    needed = config.parallel.num_ranks
    if config.model.device == "cuda":
        is_there = num_gpus >= needed
        remedy = (
            "" if is_there else "; lower parallel.dp or parallel.tp, or join a cluster with more"
        )
        yield Finding("config: GPUs", is_there, f"{num_gpus} here, {needed} needed{remedy}")

    yield from _pull(config)
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

    obstacle = find_obstacle(section) or _disk_below_bound(section)
    return Finding(
        "config: cache.l3",
        obstacle is None,
        f"{section.backend}: {'can be opened, and answers' if obstacle is None else obstacle}",
        is_optional=section.lazy,
    )


def _disk_below_bound(section: L3Section) -> str | None:
    """Why the disk is full before anything is evicted; None if it is larger than the bound."""
    if not isinstance(section, FolderL3Section):
        return None
    path = Path(section.path)
    folder = next(each for each in (path, *path.parents) if each.is_dir())
    total_bytes = shutil.disk_usage(folder).total
    if total_bytes >= section.max_bytes:
        return None
    return (
        f"cache.l3.max_bytes is {format_bytes(section.max_bytes)}, but the whole disk of {path} "
        f"has {format_bytes(total_bytes)}: once it is full, new pages are dropped and no old ones "
        "go. Lower it, or use a larger disk"
    )


def _pull(config: EngineConfig) -> Iterator[Finding]:
    try:
        chosen = chosen_transport(config)
    except ConfigError as error:
        yield Finding("config: cache.l2.pull", False, str(error))
        return
    if chosen is not None:
        is_ok = chosen.is_as_set
        yield Finding("config: cache.l2.pull", is_ok, str(chosen), is_optional=True)


def _size(config: EngineConfig) -> Iterator[Finding]:
    try:
        require_checkpoint(config.model)
    except CheckpointError as error:
        yield Finding("config: model", False, str(error))
        return
    try:
        report = check_config(config, machine_at_hand(config))
    except (CheckpointError, ConfigError) as error:
        yield Finding("config: size", False, str(error))
        return

    sizes = report.sizes
    told = f"{format_bytes(sizes.needs.weight_bytes)} of weights, stored as {report.weight_format}"
    if sizes.l1_bytes is not None:
        told += f", {format_bytes(sizes.l1_bytes)} of L1 per rank"
    if sizes.arena_bytes is not None:
        told += f", {format_bytes(sizes.arena_bytes)} of L2"
    if not report.problems:
        yield Finding("config: size", True, f"{told}; raydix config check tells more")
    for number, problem in enumerate(report.problems, start=1):
        yield Finding(f"config: size, {number}", False, problem)
