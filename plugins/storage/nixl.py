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
from raydix.runtime.storage.backends.file_transfers import Result, read_page
from raydix.runtime.storage.backends.file_tree import NewFiles, close_quietly, write_all
from raydix.runtime.storage.batches import compare_length

logger = logging.getLogger(__name__)

OK = ObjectStatus.OK

_EAGER_S = 1e-3
"""The time in which a transfer is asked without a pause whether it is complete: most of small pages
are, and the shortest pause takes a tenth of their time.
"""
_POLL_S = 5e-5
"""The pause between two questions after that: without it they would take a whole core."""


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

    def read(self, paths: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Read all files of the right length in one transfer."""
        fds: list[int] = []
        try:
            results = [
                _open(path, len(page), fds) for path, (_, page, _) in zip(paths, refs, strict=True)
            ]
            if len(fds) < len(refs):
                refs = [ref for ref, result in zip(refs, results, strict=True) if result is OK]

            if fds and not self._transfer("READ", fds, refs):
                again = (read_page(fd, ref.page) for fd, ref in zip(fds, refs, strict=True))
                results = [next(again) if result is OK else result for result in results]
        finally:
            for fd in fds:
                close_quietly(fd)
        return results

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Write all files in one transfer."""
        results: dict[str, Result] = {}
        begun: dict[str, ObjectRef] = {}
        fds: list[int] = []
        for name, ref in zip(names, refs, strict=True):
            try:
                fds.append(new.create(name))
                begun[name] = ref
            except OSError as error:
                results[name] = error

        is_done = not begun or self._transfer("WRITE", fds, list(begun.values()))
        for (name, ref), fd in zip(begun.items(), fds, strict=True):
            try:
                if not is_done:
                    write_all(fd, ref.page)
                new.publish(name)
                results[name] = OK
            except OSError as error:
                results[name] = error
        return [results[name] for name in names]

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


def _open(path: str, size_bytes: int, fds: list[int]) -> Result:
    """Add the descriptor of a file that has this length to `fds`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return error

    # NIXL would not notice that a file goes on after its page.
    result: Result = OK
    try:
        found_bytes = os.lseek(fd, 0, os.SEEK_END)  # takes half the time of fstat
        if found_bytes != size_bytes:
            result = compare_length(found_bytes, size_bytes)
    except OSError as error:
        result = error

    if result is OK:
        fds.append(fd)
    else:
        close_quietly(fd)
    return result


def _finish(agent: Any, handle: Any) -> bool:
    """Start a transfer and wait for its end: until then pages may be written to."""
    state = agent.transfer(handle)
    patience_s = time.monotonic() + _EAGER_S
    while state not in ("DONE", "ERR"):
        # Not even a pause of 0 s before: a busy core would be given away for some milliseconds.
        if time.monotonic() >= patience_s:
            time.sleep(_POLL_S)
        state = agent.check_xfer_state(handle)
    return bool(state == "DONE")
