"""The two ends of a test's link."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator

import numpy as np

from raydix.runtime.actors.links.link import BlockingLink, Link
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import StepPlan

SECRET = b"s3cret"
NEAR = Hello(role=Role.SCHEDULER, name="scheduler", incarnation=1, pid=os.getpid())
FAR = Hello(role=Role.CLIENT, name="far", incarnation=2, pid=os.getpid())


class ThreadedLink:
    """A blocking end whose calls run in threads, so that it looks like an asyncio end."""

    def __init__(self, blocking: BlockingLink) -> None:
        self.blocking = blocking

    @property
    def hello(self) -> Hello:
        return self.blocking.hello

    async def send(self, message: Message) -> None:
        await asyncio.to_thread(self.blocking.send, message)

    async def receive(self) -> Message:
        return await asyncio.to_thread(self.blocking.receive)

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)


class LoopLink:
    """An asyncio end with the same awaitable calls."""

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def hello(self) -> Hello:
        return self.link.hello

    async def send(self, message: Message) -> None:
        self.link.send(message)

    async def receive(self) -> Message:
        return await self.link.receive()

    async def close(self) -> None:
        self.link.close()


FarEnd = ThreadedLink | LoopLink
Pair = tuple[Link, FarEnd]


@contextlib.asynccontextmanager
async def listening(address: str) -> AsyncIterator[tuple[Listener, "asyncio.Queue[Link]"]]:
    links: asyncio.Queue[Link] = asyncio.Queue()
    listener = await listen(address, NEAR, SECRET, links.put)
    try:
        yield listener, links
    finally:
        await listener.close()


@contextlib.contextmanager
def short_folder() -> Iterator[str]:
    """A folder for socket files: pytest's own may exceed a socket path's 107 bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield name


def unique_unix_address(folder: str) -> str:
    """An address in `folder` that no other listener has."""
    return f"unix:{os.path.join(folder, secrets.token_hex(6))}.sock"


def numbered(number: int) -> ProcessDrained:
    return ProcessDrained(pid=number)


def large(num_int32: int) -> StepPlan:
    return StepPlan(step=1, row_slots=int32_array(np.arange(num_int32)))
