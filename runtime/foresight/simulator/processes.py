"""Which processes live, and when those that were killed have exited."""

import itertools
from collections import defaultdict
from collections.abc import Callable

from raydix.runtime.foresight.simulator.clock import Clock


class Processes:
    """Owns: process ids, and exits. A killed process may touch memory until it has exited."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pids = itertools.count(1000)
        self._exits_s: dict[int, float] = {}
        self._watches: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)

    def start(self) -> int:
        """A new process; returns its id."""
        return next(self._pids)

    def end(self, pid: int, linger_s: float) -> None:
        """A process is killed and has exited `linger_s` from now."""
        self._exits_s[pid] = self._clock.now_s + linger_s
        for watch in self._watches.pop(pid, []):
            self._clock.at(self._exits_s[pid], watch)

    def watch(self, pid: int, on_exit: Callable[[], None]) -> None:
        """Call `on_exit` once a process has exited, at once if it has."""
        if pid in self._exits_s:
            self._clock.at(self._exits_s[pid], on_exit)
        else:
            self._watches[pid].append(on_exit)

    @property
    def is_any_lingering(self) -> bool:
        """Some killed process has not exited yet."""
        return any(exit_s > self._clock.now_s for exit_s in self._exits_s.values())
