"""NIXL in a process of its own, which maps the arena: it reads other nodes' pages, or is read.

UCX goes on writing into pages after a transfer was given up (NIXL 1.5.1: after a transfer was
released, and after its peer was removed), and may abort its whole process. So it has one that can
be killed: once that has ended, nobody writes into the arena, and HostMemory lives on.
"""

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from raydix.errors import ConfigError, RaydixError
from raydix.runtime.actors.arena_users import OF_HOST_MEMORY, ArenaUsers
from raydix.runtime.actors.process import ProcessId, end_with_parent, exit_process
from raydix.runtime.actors.pulls.leasing import ReadFailed, RemoteRead
from raydix.runtime.messages.pulls import ArenaAccess
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena

logger = logging.getLogger(__name__)

OPENING_S = 60.0
"""Seconds for the process to come up and register the arena."""
_POLL_S = 2e-5
"""The pause between two questions whether a transfer has ended."""
Answer = ArenaAccess | str | None
"""What the process says: how its arena is read; what is wrong; or that it has done as it was told.
"""


class NixlUnusable(RaydixError):
    """NIXL cannot be used here, and why."""


class NixlReads:
    """`RemoteReads` for one thread, by a process that it shares with other threads."""

    def __init__(self, channel: "Connection[Any, Any]") -> None:
        self._channel = channel

    def read(self, reads: Sequence[RemoteRead]) -> None:
        """Have the process read pages; if that fails, it is of no use any more."""
        try:
            self._channel.send(list(reads))
            answer: Answer = self._channel.recv()
        except (OSError, EOFError) as error:
            raise ReadFailed("the process of NIXL has ended") from error
        if isinstance(answer, str):
            raise ReadFailed(answer)


class NixlProcess:
    """Owns: a process in which NIXL has the arena registered, until `close`.

    It is noted among the arena's users: it may end later than a HostMemory that is killed.
    """

    def __init__(self, location: ArenaLocation, users: ArenaUsers, num_channels: int = 1) -> None:
        """Start it. Raises NixlUnusable if it does not come up."""
        self._users = users
        pipes = [Pipe() for _ in range(num_channels)]
        self._channels = [ours for ours, _ in pipes]
        theirs = [channel.fileno() for _, channel in pipes]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({os.getpid()}, {theirs})"],
            stdin=subprocess.DEVNULL,
            # NIXL and UCX log to either.
            stdout=2,
            env={"NIXL_LOG_LEVEL": "WARN"} | environment,
            pass_fds=theirs,
            process_group=0,
        )
        for _, channel in pipes:
            channel.close()
        try:
            self._note()
            # From here on it may map the arena.
            answer = self._ask(location)
            if not isinstance(answer, ArenaAccess):
                raise NixlUnusable(str(answer))
        except BaseException:
            self.close()
            raise
        self.access = answer
        """How other nodes read the arena."""

    @property
    def is_alive(self) -> bool:
        """Whether it can be read, or reads."""
        return self._process.poll() is None

    def reads_of(self, access: ArenaAccess) -> list[NixlReads]:
        """Reads of another node's arena, for a thread each. Raises NixlUnusable."""
        if (answer := self._ask(access)) is not None:
            raise NixlUnusable(str(answer))
        return [NixlReads(channel) for channel in self._channels]

    def _note(self) -> None:
        """Note it as a user of the arena. Raises NixlUnusable if there is no room for it."""
        try:
            self._users.add(OF_HOST_MEMORY, ProcessId.of(self._process.pid))
        except ConfigError as error:
            raise NixlUnusable(str(error)) from error

    def _ask(self, question: ArenaLocation | ArenaAccess) -> Answer:
        try:
            self._channels[0].send(question)
            if not self._channels[0].poll(OPENING_S):
                return f"its process does not answer within {OPENING_S:g} s"
            answer: Answer = self._channels[0].recv()
        except (OSError, EOFError):
            return f"its process has ended with {self._process.wait()}"
        return answer

    def close(self) -> None:
        """End the process, and return once it writes no more; whoever reads by it fails.

        May be called twice.
        """
        self._process.kill()
        self._process.wait()
        self._users.drop_ended(OF_HOST_MEMORY)


def serve(asker: int, fds: Sequence[int]) -> None:
    """Register the arena that is named first, and read as one is told.

    asker: our parent, with which this process ends. fds: the channels from it.
    """
    end_with_parent()
    if os.getppid() != asker:
        # It ended while we imported all this, too early for the kernel to end us.
        return
    channels: list[Connection[Any, Any]] = [Connection(fd) for fd in fds]
    with contextlib.suppress(EOFError, OSError):
        said = _open_and_answer(channels)
        for channel in channels:
            channel.send(said)
    # NIXL's own clean-up has ended in a segmentation fault (1.5.1).
    exit_process()


def _open_and_answer(channels: list["Connection[Any, Any]"]) -> str:
    """Register the arena and carry out orders until one fails; returns why.

    Raises EOFError or OSError once nobody is left who gives any.
    """
    arena = HostArena.attach(channels[0].recv())
    try:
        from nixl import _bindings
    except ImportError as error:
        return f"the library nixl cannot be imported ({error})"

    # NIXL's errors have no base class of their own.
    errors: tuple[type[Exception], ...] = (_TransferFailed,)
    errors += tuple(
        error
        for error in vars(_bindings).values()
        if isinstance(error, type) and issubclass(error, Exception)
    )
    try:
        agent = _Agent(arena)
        channels[0].send(agent.access)
        while True:
            _answer(agent, channels)
    except errors as error:
        # What else is under way ends with this process.
        return f"{type(error).__name__}: {error}"


def _answer(agent: "_Agent", channels: list["Connection[Any, Any]"]) -> None:
    """Begin what was ordered, and tell what has ended."""
    ready = wait(channels, 0 if agent.is_busy else None)
    for channel in ready:
        assert isinstance(channel, Connection), "nothing else is waited for"
        match channel.recv():
            case ArenaAccess() as access:
                agent.add(access)
                channel.send(None)
            case reads:
                agent.start(channel, reads)
    for channel in agent.finished():
        channel.send(None)
    if not ready:
        time.sleep(_POLL_S)


class _TransferFailed(Exception):
    """NIXL could not read some pages."""


class _Agent:
    """Owns: NIXL's agent, and the transfers that are under way."""

    def __init__(self, arena: HostArena) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self._address = np.frombuffer(arena.buffer, dtype=np.uint8).ctypes.data
        # By a thread of its own it answers others also while nobody here asks for anything.
        config = nixl_agent_config(enable_prog_thread=True, backends=[])
        self._agent: Any = nixl_agent(f"raydix-{secrets.token_hex(8)}", config)
        self._agent.create_backend("UCX", {})
        self._agent.register_memory([(self._address, len(arena.buffer), 0, "")], "DRAM")
        self.access = ArenaAccess(metadata=self._agent.get_agent_metadata(), address=self._address)
        self._other: ArenaAccess | None = None
        self._name: Any = None
        self._under_way: list[tuple[Connection[Any, Any], Any]] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    def add(self, access: ArenaAccess) -> None:
        self._other, self._name = access, self._agent.add_remote_agent(access.metadata)

    def start(self, channel: "Connection[Any, Any]", reads: Sequence[RemoteRead]) -> None:
        assert self._other is not None, "nothing is read before it is told from where"
        own = [(self._address + each.local_offset, each.num_bytes, 0) for each in reads]
        others = [(self._other.address + each.offset, each.num_bytes, 0) for each in reads]
        handle = self._agent.initialize_xfer(
            "READ",
            self._agent.get_xfer_descs(own, "DRAM"),
            self._agent.get_xfer_descs(others, "DRAM"),
            self._name,
        )
        self._agent.transfer(handle)
        self._under_way.append((channel, handle))

    def finished(self) -> list["Connection[Any, Any]"]:
        """The channels of transfers that have ended. Raises _TransferFailed, or errors of NIXL."""
        found = []
        for each in tuple(self._under_way):
            channel, handle = each
            match self._agent.check_xfer_state(handle):
                case "DONE":
                    self._agent.release_xfer_handle(handle)
                    self._under_way.remove(each)
                    found.append(channel)
                case "ERR":
                    raise _TransferFailed("NIXL reports no reason")
        return found
