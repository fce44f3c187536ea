"""How much memory this process may still take."""

from pathlib import Path


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _own_cgroups(proc: Path) -> dict[str, str]:
    """Controller list ("" for version 2) -> path of this process's group."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    return {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}


def _cgroup_headrooms(proc: Path, cgroup: Path) -> list[int]:
    """Limit minus use of this process's groups and of all groups above them, where a limit is set."""
    groups = _own_cgroups(proc)
    versions = [
        (groups.get(""), cgroup, "memory.max", "memory.current"),
        (groups.get("memory"), cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ]
    headrooms = []
    for path, root, limit_name, use_name in versions:
        if path is None:
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            limit, use = _read_int(folder / limit_name), _read_int(folder / use_name)
            if limit is not None and use is not None:
                headrooms.append(limit - use)
            if folder == root:
                break
    return headrooms


def available_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The least of MemAvailable and what each control group leaves; None if the system does not say."""
    figures = _cgroup_headrooms(proc, cgroup)
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                figures.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    return max(0, min(figures)) if figures else None
