"""What carries the pages of one link: TCP, by which they are sent, or NIXL, which reads them."""

import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.pulls.arriving import ArrivingPages
from raydix.runtime.actors.pulls.leasing import ReadFailed, RemoteRead, RemoteReads, read_pages
from raydix.runtime.actors.pulls.nixl_process import NixlProcess
from raydix.runtime.actors.pulls.page_stream import PageStream
from raydix.runtime.actors.pulls.streaming import receive_pages
from raydix.runtime.config.pull import PullTransport
from raydix.runtime.messages.hello import Role
from raydix.runtime.messages.pulls import ArenaAccess
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

_RDMA_DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlFacts:
    """What decides whether pages are read by NIXL."""

    is_installed: bool
    has_rdma: bool
    is_encrypted: bool
    """Whether links between nodes use TLS."""


def nixl_facts(is_encrypted: bool) -> NixlFacts:
    """What holds on this host."""
    return NixlFacts(
        is_installed=importlib.util.find_spec("nixl") is not None,
        has_rdma=_RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir()),
        is_encrypted=is_encrypted,
    )


def why_not_nixl(transport: PullTransport, facts: NixlFacts) -> str | None:
    """Why pages are not read by NIXL here; None: they are."""
    if transport is PullTransport.TCP:
        return "cache.l2.pull.transport is tcp"
    if facts.is_encrypted:
        return "links between nodes use TLS, and what NIXL reads is not encrypted"
    if not facts.is_installed:
        return "the library nixl is not installed (pip install 'raydix[nixl]')"
    if transport is PullTransport.AUTO and not facts.has_rdma:
        return "this host has no RDMA device, and over TCP our own streams are faster"
    return None


class Carrier(Protocol):
    """The reading end of one link's pages, for the threads of its streams."""

    role: Role
    """What its streams say they are."""
    failure: str | None
    """Why it should not be tried again with this peer."""

    def receive(self, number: int, stream: PageStream, arriving: ArrivingPages) -> None:
        """Take what the stream of this number brings, until it ends."""

    def close(self) -> None:
        """Let nothing be written any more by whoever is not a thread of a stream. Not for the
        loop. May be called twice.
        """


class TcpCarrier:
    """Pages that come in the streams themselves."""

    role = Role.PAGE_STREAM

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.failure: str | None = None

    def receive(self, number: int, stream: PageStream, arriving: ArrivingPages) -> None:
        """Take pages into the arena."""
        receive_pages(stream, arriving, self._namespace)

    def close(self) -> None:
        """The threads of streams alone write pages."""


class _WatchedReads:
    """`RemoteReads` that tell of a failure before the stream, and so the link, is closed for it."""

    def __init__(self, reads: RemoteReads, note: Callable[[ReadFailed], None]) -> None:
        self._reads, self._note = reads, note

    def read(self, reads: Sequence[RemoteRead]) -> None:
        """Read pages. Raises ReadFailed."""
        try:
            self._reads.read(reads)
        except ReadFailed as failed:
            self._note(failed)
            raise


class LeaseCarrier:
    """Owns: the process that reads leased pages, if there is one; each stream has its reads."""

    role = Role.LEASE_STREAM

    def __init__(
        self,
        reads: Sequence[RemoteReads],
        namespace: Namespace,
        process: NixlProcess | None = None,
    ) -> None:
        self._reads = [_WatchedReads(each, self._note) for each in reads]
        self._namespace = namespace
        self._process = process
        self._lock = threading.Lock()
        self._is_closed = False
        self.failure: str | None = None

    @classmethod
    def open(
        cls,
        location: ArenaLocation,
        users: ArenaUsers,
        access: ArenaAccess,
        namespace: Namespace,
        num_streams: int,
    ) -> "LeaseCarrier":
        """Have NIXL read another node's arena into this one. Raises NixlUnusable."""
        process = NixlProcess(location, users, num_streams)
        try:
            return cls(process.reads_of(access), namespace, process)
        except BaseException:
            process.close()
            raise

    def receive(self, number: int, stream: PageStream, arriving: ArrivingPages) -> None:
        """Read what is leased."""
        read_pages(stream, arriving, self._namespace, self._reads[number])

    def _note(self, failed: ReadFailed) -> None:
        with self._lock:
            # What fails since the link has ended says nothing of the next one.
            if not self._is_closed and self.failure is None:
                self.failure = str(failed)

    def close(self) -> None:
        """End the process: a transfer that is given up may else be written at any time."""
        with self._lock:
            self._is_closed = True
        if self._process is not None:
            self._process.close()
