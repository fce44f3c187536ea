"""Where 3FS is mounted on this host."""

import sys
from pathlib import Path

_TYPE = "fuse.hf3fs"


def find_mounts(table: str) -> list[str]:
    """The folders at which 3FS is mounted, by the text of /proc/mounts."""
    fields = [line.split() for line in table.splitlines()]
    return [field[1] for field in fields if len(field) > 2 and field[2] == _TYPE]


def require_mount(path: Path = Path("/proc/mounts")) -> None:
    """Print where 3FS is mounted, or end this process, which does nothing else, if it is not."""
    mounts = find_mounts(path.read_text())
    if not mounts:
        sys.exit(f"nothing of type {_TYPE} is mounted")
    print(f"mounted at {', '.join(mounts)}")
