"""Dialling a listener over a unix or TCP socket, on an asyncio loop."""

import asyncio
import ssl
from typing import Any

from raydix.runtime.actors.links.address import Address, UnixAddress, parse_address
from raydix.runtime.actors.links.handshake import DialerHandshake, new_nonce
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S, SocketLink
from raydix.runtime.messages.hello import Hello

_FIRST_RETRY_S = 0.01
_MAX_RETRY_S = 0.5


def retry_delays_s(timeout_s: float) -> list[float]:
    """Waits between attempts to connect: doubling, and `timeout_s` in sum."""
    delays, delay_s = [], _FIRST_RETRY_S
    while timeout_s > 0:
        delays.append(min(delay_s, timeout_s))
        timeout_s -= delay_s
        delay_s = min(2 * delay_s, _MAX_RETRY_S)
    return delays


async def connect(
    address: str,
    own: Hello,
    secret: bytes,
    timeout_s: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> SocketLink:
    """Connect, trying again while nobody listens there. `tls`: for TCP alone.

    Raises LinkRefused if either end does not believe the other, LinkSilent if nobody answers who
    listens there, LinkClosed if nobody listened for `timeout_s`.
    """
    # The last attempt has no delay after it.
    for delay_s in [*retry_delays_s(timeout_s), None]:
        try:
            return await _connect_once(address, own, secret, tls)
        except OSError as error:
            if delay_s is None:
                raise LinkClosed(
                    f"nobody listens at {address} after {timeout_s} s: {error}"
                ) from error
            await asyncio.sleep(delay_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _connect_once(
    address: str, own: Hello, secret: bytes, tls: ssl.SSLContext | None
) -> SocketLink:
    opened: asyncio.Future[SocketLink] = asyncio.get_running_loop().create_future()
    handshake = DialerHandshake(own, secret, new_nonce())
    link = SocketLink(handshake, opened.set_result)
    try:
        # The kernel would try for minutes where nothing answers at all.
        async with asyncio.timeout(HANDSHAKE_S):
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
