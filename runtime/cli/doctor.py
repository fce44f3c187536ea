"""`raydix doctor`: what this machine offers, and what would be in the way of an engine."""

import importlib.util
import os
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raydix.runtime.actors.bootstrap.gpu_count import count_gpus
from raydix.runtime.cli.findings import Finding
from raydix.runtime.cli.options import AsJson, Settings, Source, sections_of
from raydix.runtime.cli.output import print_json
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.memory_limit import available_memory_bytes

MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 4 * 2**30
_PACKAGES = (
    "torch",
    "ray",
    "transformers",
    "safetensors",
    "numpy",
    "msgspec",
    "pydantic",
    "xxhash",
)


def doctor(source: Source = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Check Python, packages, memory, shared memory, storage, devices and dispatch of experts.

    With a configuration: whether this machine has what it asks for, too. Exits with 1 if something
    is in the way.
    """
    has_config = source is not None or bool(settings)
    findings = examine(load_config(source, sections_of(settings)) if has_config else None)
    if as_json:
        print_json([_record_of(each) for each in findings])
    else:
        table = Table(show_header=False, box=None)
        for each in findings:
            table.add_row(_mark(each), each.subject, escape(each.detail))
        Console().print(table)
    sys.exit(0 if all(each.is_ok or each.is_optional for each in findings) else 1)


def examine(config: EngineConfig | None = None) -> list[Finding]:
    """Look at all that `doctor` reports. Changes nothing."""
    from raydix.runtime.cli.doctor_dispatch import examine_dispatch
    from raydix.runtime.cli.doctor_storage import examine_backends

    backends = tuple(examine_backends())
    device, num_gpus = _device()
    findings = [
        _python(),
        *(_package(name) for name in _PACKAGES),
        _cores(),
        _memory(),
        _memfd(),
        _shared_memory(),
        _file_backend(),
        *(
            Finding(f"storage: {report.name}", report.is_usable, report.detail, is_optional=True)
            for report in backends
        ),
        device,
        *(
            Finding(
                f"dispatch: {verdict.backend}",
                verdict.obstacle is None,
                str(verdict),
                is_optional=True,
            )
            for verdict in examine_dispatch()
        ),
    ]
    if config is not None:
        from raydix.runtime.cli.doctor_config import examine_config

        findings += examine_config(config, num_gpus, backends)
    return findings


def _record_of(finding: Finding) -> dict[str, Any]:
    return {
        "subject": finding.subject,
        "ok": finding.is_ok,
        "optional": finding.is_optional,
        "detail": finding.detail,
    }


def _mark(finding: Finding) -> str:
    if finding.is_ok:
        return "[green]ok[/]"
    return "[yellow]--[/]" if finding.is_optional else "[red]!![/]"


def _python() -> Finding:
    needed = ".".join(map(str, MIN_PYTHON))
    return Finding(
        "python", sys.version_info >= MIN_PYTHON, f"{sys.version.split()[0]} (at least {needed})"
    )


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "not installed; run make venv, or pip install raydix")


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0))
    return Finding("cpu cores", count >= 2, f"{count} (at least 2)")


def _memory() -> Finding:
    available = available_memory_bytes()
    return Finding(
        "memory",
        available >= MIN_MEMORY_BYTES,
        f"{format_bytes(available)} left within the cgroup's limit (at least "
        f"{format_bytes(MIN_MEMORY_BYTES)})",
    )


def _memfd() -> Finding:
    """L2 lives in a memfd that other processes of the same user map through /proc."""
    try:
        fd = os.memfd_create("raydix-doctor", os.MFD_CLOEXEC)
        try:
            os.close(os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDWR))
        finally:
            os.close(fd)
    except OSError as error:
        return Finding("memfd", False, f"{error}; L2 needs it, set cache.l2 to null")
    return Finding("memfd", True, "can be created and mapped through /proc")


def _shared_memory() -> Finding:
    """Ray's object store lives there; Raydix itself puts nothing into it."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return Finding(
            "/dev/shm", False, f"{error}; Ray falls back to files in /tmp, which is slow"
        )
    return Finding(
        "/dev/shm", free >= 2**28, f"{format_bytes(free)} free (Ray wants at least 256MiB)"
    )


def _file_backend() -> Finding:
    folder = Path(tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.preadv(file.fileno(), [bytearray(1)], 0)
    except OSError as error:
        return Finding("storage: file", False, f"{folder}: {error}")
    return Finding(
        "storage: file",
        True,
        f"usable; {folder} has {format_bytes(shutil.disk_usage(folder).free)} free",
    )


def _device() -> tuple[Finding, int]:
    """What engines can run on, and how many GPUs there are."""
    if importlib.util.find_spec("torch") is None:
        return Finding("device", False, "torch is not installed"), 0
    match count := count_gpus():
        case None:
            text = "an NVIDIA driver is installed but does not answer; device: cuda will fail"
            return Finding("device", False, text), 0
        case 0:
            return Finding("device", True, "cpu (no NVIDIA driver)"), 0
    return Finding("device", True, f"cuda with {count} GPU(s), and cpu"), count
