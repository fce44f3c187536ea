"""Dialling a listener over a unix or TCP socket, on an asyncio loop."""

import asyncio
import ssl
import time
from typing import Any

from raydix.runtime.actors.links.address import Address, UnixAddress, parse_address
from raydix.runtime.actors.links.attempts import Attempts
from raydix.runtime.actors.links.handshake import DialerHandshake, new_nonce
from raydix.runtime.actors.links.link import LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S, SocketLink
from raydix.runtime.messages.hello import Hello


async def connect(
    address: str,
    own: Hello,
    secret: bytes,
    timeout_s: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> SocketLink:
    """Connect, trying again while nobody listens there. `tls`: for TCP alone.

    Raises LinkRefused if either end does not believe the other, LinkSilent if nobody answers who
    listens there, LinkClosed if nobody listened, or no host answered, for `timeout_s`. The first
    attempt takes longer if it has to.
    """
    attempts = Attempts(timeout_s, time.monotonic())
    while True:
        try:
            return await _connect_once(
                address, own, secret, tls, timeout_s=attempts.bound_s(time.monotonic())
            )
        except OSError as error:
            pause_s = attempts.fail(time.monotonic())
            if pause_s is None:
                raise attempts.end(address, error, time.monotonic()) from error
        await asyncio.sleep(pause_s)


async def _connect_once(
    address: str, own: Hello, secret: bytes, tls: ssl.SSLContext | None, *, timeout_s: float
) -> SocketLink:
    opened: asyncio.Future[SocketLink] = asyncio.get_running_loop().create_future()
    handshake = DialerHandshake(own, secret, new_nonce())
    link = SocketLink(handshake, opened.set_result)
    try:
        # The kernel would try for minutes where nothing answers at all.
        async with asyncio.timeout(timeout_s):
            await _dial(parse_address(address), link, tls)
    except ssl.SSLError as error:
        raise LinkRefused(f"{address} and this process do not agree on TLS: {error}") from error

    # The listener answers, which opens the link, or hangs up.
    events: list[asyncio.Future[Any]] = [opened, link.lost]
    try:
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        link.close()
        raise

    if not opened.done():
        if link.is_silent:
            raise LinkSilent(f"{address} has not answered a greeting for {HANDSHAKE_S:g} s")
        raise LinkRefused(f"{address} hung up on us: {link.end_reason}")
    return opened.result()


async def _dial(address: Address, link: SocketLink, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(address, UnixAddress):
        await loop.create_unix_connection(lambda: link, address.path)
    else:
        await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
