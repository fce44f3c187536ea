"""File transfers through NIXL: a batch of files at a time, by its POSIX plugin (io_uring) or another for files."""

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
from raydix.runtime.storage.file_transfers import Piece, SystemCalls

logger = logging.getLogger(__name__)

_NUM_EAGER_POLLS = 16
_POLL_S = 5e-5
"""NIXL tells of a completed transfer only when asked; without pauses the question would take a core."""


class NixlTransfers:
    """Owns: one NIXL agent for each batch that is under way at the same time, each with the arena registered.

    A batch of NIXL succeeds or fails as a whole. One that has failed is done again by system calls, piece by piece,
    which says of each file what is wrong with it. The POSIX plugin reports a failure only when all of the batch has
    come to an end (1.5.1, measured), so that nothing writes into a page any more.
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
        """Make the first agent. Raises ConfigError if NIXL is not installed or cannot load or start the plugin."""
        try:
            from nixl import _api, _bindings
        except ImportError as error:
            raise ConfigError(
                f"cache.l3.backend is nixl, but the library cannot be imported ({error}). Install raydix[nixl]."
            ) from error
        self._api = _api
        # They have no base of their own.
        self._errors = tuple(
            error for error in vars(_bindings).values() if isinstance(error, type) and issubclass(error, Exception)
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

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """One transfer for all files that have the right length."""
        statuses: list[ObjectStatus | OSError] = [_compare_size(piece) for piece in pieces]
        good = [index for index, status in enumerate(statuses) if status is ObjectStatus.OK]
        wanted = [pieces[index] for index in good]
        if wanted and not self._transfer("READ", wanted):
            for index, status in zip(good, self._system_calls.read(wanted), strict=True):
                statuses[index] = status
        return statuses

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """One transfer for all pieces."""
        return [ObjectStatus.OK] * len(pieces) if self._transfer("WRITE", pieces) else self._system_calls.write(pieces)

    def _transfer(self, operation: str, pieces: Sequence[Piece]) -> bool:
        """Whether all of it was moved."""
        memory = [(self._address + piece.offset, len(piece.page), 0) for piece in pieces]
        with self._lock:
            agent = self._idle.pop() if self._idle else None
        try:
            agent = agent or self._make_agent()
            files = agent.register_memory([(0, len(piece.page), piece.fd, "") for piece in pieces], "FILE")
            try:
                descriptors = agent.get_xfer_descs(memory, "DRAM")
                handle = agent.initialize_xfer(operation, descriptors, files.trim(), agent.name)
                try:
                    is_done = _finish(agent, handle)
                finally:
                    agent.release_xfer_handle(handle)
            finally:
                agent.deregister_memory(files)
        except self._errors as error:
            logger.warning("a NIXL transfer of %d files failed (%s); it is done again file by file", len(pieces), error)
            return False  # and the agent goes
        with self._lock:
            self._idle.append(agent)
        return is_done

    def close(self) -> None:
        """Drop the agents, and with them the registration of the arena."""
        with self._lock:
            self._idle.clear()
        self._arena = memoryview(b"")


def _finish(agent: Any, handle: Any) -> bool:
    """Start a transfer and wait for its end, however long that takes: until then pages may be written to."""
    state = agent.transfer(handle)
    for num_polls in itertools.count():
        if state in ("DONE", "ERR"):
            return bool(state == "DONE")
        if num_polls >= _NUM_EAGER_POLLS:
            time.sleep(_POLL_S)
        state = agent.check_xfer_state(handle)
    raise AssertionError("unreachable")


def _compare_size(piece: Piece) -> ObjectStatus:
    size_bytes = os.fstat(piece.fd).st_size
    if size_bytes == len(piece.page):
        return ObjectStatus.OK
    return ObjectStatus.TOO_SHORT if size_bytes < len(piece.page) else ObjectStatus.WRONG_LENGTH
