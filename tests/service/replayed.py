"""What somebody in the middle can do with a hello that it has overheard: say it once more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from raydix.runtime.actors.links.address import UnixAddress, parse_address

_CHUNK_BYTES = 1 << 16
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Overheard:
    """What passed between a dialer and a listener, in bytes."""

    address: str
    """The address at which the one in the middle listens."""
    said: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)


@contextlib.asynccontextmanager
async def in_the_middle(address: str, folder: Path) -> AsyncIterator[Overheard]:
    """Pass on what one dialer and the listener at `address` say, and keep it."""
    is_unix = isinstance(parse_address(address), UnixAddress)
    heard = Overheard("")
    ends: list[asyncio.StreamWriter] = []

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                kept += chunk
                writer.write(chunk)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await dialled(address)
        ends.extend((writer, far_writer))
        await asyncio.gather(
            pass_on(reader, far_writer, heard.said), pass_on(far_reader, writer, heard.answered)
        )

    if is_unix:
        server = await asyncio.start_unix_server(serve, folder / "middle.sock")
        heard.address = f"unix:{folder}/middle.sock"
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        heard.address = f"tcp:{host}:{port}"
    try:
        yield heard
    finally:
        server.close()
        for each in ends:
            each.close()


async def dialled(address: str) -> _Streams:
    """Connect to a listener, and say nothing yet."""
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress):
        return await asyncio.open_unix_connection(parsed.path)
    return await asyncio.open_connection(parsed.host, parsed.port)


async def replay(address: str, said: bytes) -> bytes:
    """Say it all again; returns what the listener answered until it hung up."""
    reader, writer = await dialled(address)
    answer = bytearray()
    try:
        writer.write(said)
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                answer += chunk
    finally:
        writer.close()
    return bytes(answer)
