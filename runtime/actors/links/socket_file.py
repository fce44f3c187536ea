"""Who may listen at a path: the holder of a lock beside the socket file."""

import contextlib
import os
import stat

from raydix.runtime.actors.links.link import AddressTaken
from raydix.runtime.actors.lock_file import LockFile, LockHeld


class SocketFile:
    """Owns: the right to put a socket at a path, until `remove` or the end of the process.

    A socket that an owner left there when it died may be replaced. The socket itself cannot tell
    whether one lives: that of a stopped or busy process may refuse a connection, too. Raises
    AddressTaken.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._lock = LockFile(f"{path}.lock")
        except LockHeld:
            raise AddressTaken(
                f"another listener lives at unix:{path}; it must end first"
            ) from None

    def remove(self) -> None:
        """Remove the socket, if there is one; another listener may come."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(self._path).st_mode):
                os.unlink(self._path)
        self._lock.remove()
