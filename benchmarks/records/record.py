"""The JSON record that every benchmark prints, and the exit status that its bars decide."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value; `max_value` and `min_value` are its bars, if it has any.

    `baseline`, in the same unit, is measured in the same run: a ceiling, or another way to do the
    same.
    """

    name: str
    value: float
    unit: str
    max_value: float | None = None
    min_value: float | None = None
    baseline: float | None = None
    baseline_name: str | None = None

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of its bars. NaN meets none."""
        above = self.max_value is not None and not self.value <= self.max_value
        below = self.min_value is not None and not self.value >= self.min_value
        return not (above or below)


def commit() -> str:
    """The checkout's commit, with `+` if tracked files differ from it; `unknown` without one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, str | int]:
    """What ran the benchmark: processor, usable cores, Python."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def name_with_ranks(benchmark: str, num_ranks: int, usual: int = 2) -> str:
    """The name of a record, with the number of ranks as a suffix if it is not the usual one."""
    return benchmark if num_ranks == usual else f"{benchmark}_{num_ranks}"


def report(
    benchmark: str,
    config: Mapping[str, object],
    figures: Sequence[Figure],
    *,
    keep_in: Path | None = None,
    kept_unit: str | None = None,
    at_commit: str | None = None,
) -> int:
    """Print a JSON record on stdout, and bars on stderr; the exit status, 1 below a bar.

    keep_in: also write it to `<benchmark>.json` in that folder, with `kept_unit` only its figures
    of that unit. at_commit: the commit of a copy without its repository.
    """
    record = {
        "benchmark": benchmark,
        "commit": at_commit or commit(),
        "machine": machine(),
        "config": dict(config),
        "figures": [_as_record(figure) for figure in figures],
    }
    print(json.dumps(record), flush=True)

    if keep_in is not None:
        keep_in.mkdir(parents=True, exist_ok=True)
        kept = [_as_record(figure) for figure in figures if kept_unit in (None, figure.unit)]
        (keep_in / f"{benchmark}.json").write_text(
            json.dumps(record | {"figures": kept}, indent=2) + "\n"
        )

    for figure in figures:
        bars = [f"at most {figure.max_value:g}"] if figure.max_value is not None else []
        bars += [f"at least {figure.min_value:g}"] if figure.min_value is not None else []
        if bars:
            verdict = "ok" if figure.is_met else "MISSED"
            # A ratio has the unit 1, which would be read as a second number.
            unit = "" if figure.unit == "1" else f" {figure.unit}"
            print(
                f"{figure.name}: {figure.value:.4g}{unit}, bar {', '.join(bars)}: {verdict}",
                file=sys.stderr,
            )
    return 0 if all(figure.is_met for figure in figures) else 1


def _as_record(figure: Figure) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: value for name, value in asdict(figure).items() if value is not None
    }
    for name in ("value", "max_value", "min_value", "baseline"):
        if name in fields:
            fields[name] = float(f"{fields[name]:.4g}")
    return fields


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
