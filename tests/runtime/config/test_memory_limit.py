from pathlib import Path

from raydix.runtime.config.memory_limit import available_memory_bytes


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A file system with 1000 KiB available and the given cgroup files."""
    contents = {
        "proc/meminfo": "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits_the_machine_decides(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/a\n",
        {"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5"},
    )
    assert available_memory_bytes(root) == 1000 * 1024


def test_a_limit_of_an_outer_cgroup_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/a/b\n",
        {"sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "2000\n"},
    )
    assert available_memory_bytes(root) == 3000


def test_version_1_limits_count(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    root = machine(
        tmp_path,
        "4:memory:/job\n0::/\n",
        {f"{folder}/memory.limit_in_bytes": "700\n", f"{folder}/memory.usage_in_bytes": "900\n"},
    )
    assert available_memory_bytes(root) == 0
