"""Batches of files through NIXL, by its POSIX plugin (io_uring) or another one for files."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.batches import compare_length
from raydix.runtime.storage.file_transfers import SystemCalls

logger = logging.getLogger(__name__)

_NUM_EAGER_POLLS = 16
_POLL_S = 5e-5
"""The pause between two questions whether a transfer is complete: without it they take a core."""


class NixlTransfers:
    """Owns: a NIXL agent, with the arena registered, for each batch that is under way.

    A batch of NIXL succeeds or fails as a whole. One that has failed is done again by system calls,
    file by file, which says of each file what is wrong with it. The POSIX plugin reports a failure
    only when all of the batch has come to an end (1.5.1, measured), so that nothing writes into a
    page any more.
    """

    max_batch = 64

    def __init__(self, plugin: str = "POSIX", options: Mapping[str, str] | None = None) -> None:
        self._plugin = plugin
        self._options = dict(options or {})
        self._system_calls = SystemCalls()
        self._arena: memoryview = memoryview(b"")
        self._address = 0
        self._api: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._idle: list[Any] = []
        self._ids = itertools.count()
        self._lock = threading.Lock()

    def open(self, arena: memoryview) -> None:
        """Make the first agent.

        Raises ConfigError if NIXL is not installed or cannot load or start the plugin.
        """
        try:
            from nixl import _api, _bindings
        except ImportError as error:
            raise ConfigError(
                f"cache.l3.backend is nixl, but the library cannot be imported ({error}). Install "
                "raydix[nixl]."
            ) from error

        self._api = _api
        # NIXL's errors have no base class of their own.
        self._errors = tuple(
            error
            for error in vars(_bindings).values()
            if isinstance(error, type) and issubclass(error, Exception)
        )

        self._arena = arena
        self._address = np.frombuffer(arena, dtype=np.uint8).ctypes.data
        try:
            self._idle.append(self._make_agent())
        except self._errors as error:
            raise ConfigError(
                f"NIXL cannot use its plugin {self._plugin} with {self._options}: {error}. "
                "Where io_uring is not allowed, set cache.l3.plugin_options to {use_aio: 'true'}."
            ) from error

    def _make_agent(self) -> Any:
        config = self._api.nixl_agent_config(enable_prog_thread=False, backends=[])
        agent = self._api.nixl_agent(f"raydix{next(self._ids)}", config)
        agent.create_backend(self._plugin, self._options)
        agent.register_memory([(self._address, len(self._arena), 0, "")], "DRAM")
        return agent

    def read(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Read all files of the right length in one transfer."""
        # NIXL would not notice that a file goes on after its page.
        statuses = [_fits(fd, len(ref.page)) for fd, ref in zip(fds, refs, strict=True)]
        good = [index for index, status in enumerate(statuses) if status is ObjectStatus.OK]
        if len(good) < len(fds):
            fds, refs = [fds[index] for index in good], [refs[index] for index in good]
        if fds and not self._transfer("READ", fds, refs):
            for index, status in zip(good, self._system_calls.read(fds, refs), strict=True):
                statuses[index] = status
        return statuses

    def write(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Write all files in one transfer."""
        is_done = self._transfer("WRITE", fds, refs)
        return [ObjectStatus.OK] * len(fds) if is_done else self._system_calls.write(fds, refs)

    def _transfer(self, operation: str, fds: Sequence[int], refs: Sequence[ObjectRef]) -> bool:
        """Move a batch; whether all of it was moved."""
        memory = [(self._address + offset, len(page), 0) for _, page, offset in refs]
        files = [(0, len(ref.page), fd, "") for fd, ref in zip(fds, refs, strict=True)]
        with self._lock:
            agent = self._idle.pop() if self._idle else None

        try:
            agent = agent or self._make_agent()
            registered = agent.register_memory(files, "FILE")
            try:
                descriptors = agent.get_xfer_descs(memory, "DRAM")
                handle = agent.initialize_xfer(
                    operation, descriptors, registered.trim(), agent.name
                )
                try:
                    is_done = _finish(agent, handle)
                finally:
                    agent.release_xfer_handle(handle)
            finally:
                agent.deregister_memory(registered)
        except self._errors as error:
            logger.warning(
                "a NIXL transfer of %d files failed (%s); it is done again file by file",
                len(fds),
                error,
            )
            return False  # and the agent is dropped, whatever state it is in

        with self._lock:
            self._idle.append(agent)
        return is_done

    def close(self) -> None:
        """Drop the agents, and with them the registration of the arena."""
        with self._lock:
            self._idle.clear()
        self._arena = memoryview(b"")


def _fits(fd: int, size_bytes: int) -> ObjectStatus | OSError:
    """Whether a file has this length."""
    try:
        found_bytes = os.lseek(fd, 0, os.SEEK_END)  # takes half the time of fstat
    except OSError as error:
        return error
    return compare_length(found_bytes, size_bytes)


def _finish(agent: Any, handle: Any) -> bool:
    """Start a transfer and wait for its end: until then pages may be written to."""
    state = agent.transfer(handle)
    for num_polls in itertools.count():
        if state in ("DONE", "ERR"):
            return bool(state == "DONE")
        if num_polls >= _NUM_EAGER_POLLS:
            time.sleep(_POLL_S)
        state = agent.check_xfer_state(handle)
    raise AssertionError("unreachable")
