"""Who may look into what the storage backends make on disk."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Modes:
    """Permissions of folders and files."""

    folder: int
    file: int
    is_below_umask: bool
    """Whether the umask may take bits away."""

    def make_folder(self, path: str) -> None:
        """Make a folder in one that is there; nothing happens if there is such a folder.

        Raises OSError.
        """
        try:
            os.mkdir(path, self.folder)
        except FileExistsError:
            return
        if not self.is_below_umask:
            os.chmod(path, self.folder)

    def create(self, path: str) -> int:
        """A new file, open to be read and written. Raises OSError, and then there is none."""
        fd = os.open(path, _NEW, self.file)
        if self.is_below_umask:
            return fd
        try:
            os.fchmod(fd, self.file)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return fd


OWNER_ALONE = Modes(0o700, 0o600, is_below_umask=True)
GROUP_TOO = Modes(0o2770, 0o640, is_below_umask=False)
"""The modes by which a group reads and deletes. A file is replaced, never written to; folders pass
their group on.
"""
MODES: Mapping[str, Modes] = MappingProxyType({"owner": OWNER_ALONE, "group": GROUP_TOO})
"""The modes by the values of `cache.l3.access`."""
