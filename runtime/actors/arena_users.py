"""Who uses an arena, noted in the arena itself, so that the next HostMemory knows it, too.

Copies go on when HostMemory is killed. Whoever takes the arena back waits for all that may copy:

    byte 0                       which of the two lists counts
    from byte 8, and from half   a list: its length in 4 bytes, then JSON

A list is written beside the one that counts, and counts by one byte: a writer that is killed leaves
one list or the other, whole.
"""

import json
import threading
from collections.abc import Sequence

from raydix.errors import ConfigError
from raydix.ids import SchedulerName
from raydix.runtime.actors.process import ProcessId

OF_HOST_MEMORY = SchedulerName("host memory")
"""Under what an arena notes processes that copy for HostMemory itself: of storage, and of NIXL."""
_HEAD_BYTES = 8
_LENGTH_BYTES = 4


class ArenaUsers:
    """Owns: the names of the engines' Schedulers that use an arena, and the processes of each.

    One that is added counts as a user until it is removed, whoever is HostMemory by then.
    HostMemory is a user, too, by the processes that copy for it. Thread-safe.
    """

    def __init__(self, region: memoryview) -> None:
        """`region`: see `HostArena.users`. What it says already holds; new memory says nothing."""
        self._region = region
        self._room_bytes = len(region) // 2 - _HEAD_BYTES - _LENGTH_BYTES
        self._processes: dict[SchedulerName, list[ProcessId]] = self._read()
        self._lock = threading.Lock()

    @property
    def names(self) -> Sequence[SchedulerName]:
        """All users, in the order in which they came."""
        return tuple(self._processes)

    @property
    def engines(self) -> Sequence[SchedulerName]:
        """All users but HostMemory itself."""
        return tuple(name for name in self._processes if name != OF_HOST_MEMORY)

    def processes(self, name: SchedulerName) -> Sequence[ProcessId]:
        """The processes of a user that were noted and may still live; none of who is no user."""
        return tuple(self._processes.get(name, ()))

    def add(self, name: SchedulerName, process: ProcessId) -> None:
        """Note a process before it can touch the arena, of a user that is there or new.

        Raises ConfigError if the list of users is full.
        """
        with self._lock:
            known = [each for each in self._processes.get(name, ()) if each.is_alive]
            if process not in known:
                known.append(process)
            self._write({**self._processes, name: known})

    def drop_ended(self, name: SchedulerName) -> None:
        """Forget the processes of a user that have ended, and the user if none is left."""
        with self._lock:
            known = self._processes.get(name, [])
            alive = [each for each in known if each.is_alive]
            if not alive:
                self._forget(name)
            elif alive != known:
                self._write({**self._processes, name: alive})

    def remove(self, name: SchedulerName) -> None:
        """Forget a user of whom no process is left."""
        with self._lock:
            self._forget(name)

    async def wait_former_ended(self) -> None:
        """Wait for what copied for the HostMemory before this one: it may still write the arena."""
        for process in self.processes(OF_HOST_MEMORY):
            await process.wait_ended()

    def _forget(self, name: SchedulerName) -> None:
        self._write({each: own for each, own in self._processes.items() if each != name})

    def _read(self) -> dict[SchedulerName, list[ProcessId]]:
        start = self._start(self._region[0])
        num_bytes = int.from_bytes(self._region[start : start + _LENGTH_BYTES], "little")
        if num_bytes == 0:
            return {}
        content = self._region[start + _LENGTH_BYTES :][:num_bytes]
        return {
            SchedulerName(name): [ProcessId(*each) for each in own]
            for name, own in json.loads(bytes(content)).items()
        }

    def _write(self, processes: dict[SchedulerName, list[ProcessId]]) -> None:
        named = {
            name: [(each.pid, each.started) for each in own] for name, own in processes.items()
        }
        content = json.dumps(named).encode()
        if len(content) > self._room_bytes:
            raise ConfigError(
                f"{len(processes)} engines use this L2, as many as it can note. Stop some of them, "
                "or start the others on another node."
            )

        other = 1 - self._region[0]
        start = self._start(other)
        self._region[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(content)] = content
        self._region[start : start + _LENGTH_BYTES] = len(content).to_bytes(_LENGTH_BYTES, "little")
        self._region[0] = other
        self._processes = processes

    def _start(self, which: int) -> int:
        return _HEAD_BYTES + which * (len(self._region) // 2)
