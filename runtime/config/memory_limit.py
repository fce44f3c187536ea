"""How much memory this process may still take, by the machine's and the cgroups' limits."""

from pathlib import Path

_V1_UNLIMITED_BYTES = 1 << 60


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated before the machine or the innermost limited cgroup runs out.

    `root` stands for the file system that holds `proc` and `sys`.
    """
    return min([_available_on_machine(root), *_available_in_cgroups(root)])


def _available_on_machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{root / 'proc/meminfo'} has no line MemAvailable")


def _available_in_cgroups(root: Path) -> list[int]:
    """Bytes left in each limited cgroup around this process, of version 1 or 2."""
    left = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit_file, usage_file = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif controllers == "memory":
            mount, limit_file, usage_file = (
                root / "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        else:
            continue

        # A limit of any enclosing cgroup binds, too.
        own = mount / path.lstrip("/")
        for folder in (own, *own.parents):
            limit = _number(folder / limit_file)
            usage = _number(folder / usage_file)
            if limit is not None and usage is not None and limit < _V1_UNLIMITED_BYTES:
                left.append(max(0, limit - usage))
            if folder == mount:
                break
    return left


def _number(path: Path) -> int | None:
    """The file's number; None if it is missing (a cgroup of another namespace) or says `max`."""
    if not path.is_file():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None
