"""The ZMQ sockets of one stream of KV events: one that publishes, one that answers who asks again.

Whoever publishes binds. A batch travels as topic, number (8 bytes, the largest first) and payload.
To the second socket a subscriber sends an empty frame and the first number that it lacks. It gets
these batches, each as an empty frame, topic, number and payload, then one with the number -1. Where
some of them are not kept any more, it gets a single batch instead, with the latest number: all that
was told before is void, and this is all that there is.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.runtime.cache.event_ring import EventRing
from raydix.runtime.config.events import EventsSection

logger = logging.getLogger(__name__)

_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_REQUEST_FRAMES = 3
"""The frames of a request as they arrive: who asks, an empty one, the number."""

Certificate = tuple[bytes, bytes]
"""The server's keys, public and secret."""


class KvSockets:
    """Owns: the sockets of one lane's stream, and its latest batches."""

    def __init__(
        self,
        context: Any,
        section: EventsSection,
        certificate: Certificate | None,
        lane: int,
        snapshot: Callable[[int], bytes],
    ) -> None:
        """Bind. `snapshot`: makes the payload of a batch with all that a lane's stream has told.

        certificate: that of `read_certificate`. Raises ConfigError if an address is taken.
        """
        import zmq

        self._ring = EventRing(section.buffer_batches)
        self._topic, self._lane, self._snapshot = section.topic.encode(), lane, snapshot
        self._publisher = context.socket(zmq.PUB)
        self._answers = context.socket(zmq.ROUTER)
        # A subscriber that does not read loses batches, which it notices by their numbers.
        self._publisher.set_hwm(section.buffer_batches)
        for socket in (self._publisher, self._answers):
            socket.linger = 0
            _secure(socket, certificate)
        try:
            self.endpoint = _bind(self._publisher, section.host, section.port, lane)
            self.replay_endpoint = _bind(self._answers, section.host, section.replay_port, lane)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"cache.events: {section.host}, ports {section.port} and {section.replay_port} "
                f"plus {lane} cannot be bound: {error}. Choose others."
            ) from error

    async def publish(self, payload: bytes) -> None:
        """Publish a batch."""
        number = self._ring.add(payload)
        await self._publisher.send_multipart([self._topic, _framed(number), payload])

    async def answer(self) -> None:
        """Answer whoever asks for what it has missed, until cancelled."""
        while True:
            request = await self._answers.recv_multipart()
            if len(request) != _REQUEST_FRAMES or len(request[2]) != _NUMBER_BYTES:
                logger.warning("a subscriber asks in %d frames, which is no request", len(request))
                continue
            asker, first = request[0], int.from_bytes(request[2], "big", signed=True)
            with contextlib.suppress(Exception):
                await self._send_since(asker, first)

    async def _send_since(self, asker: bytes, first: int) -> None:
        kept = self._ring.since(first)
        if kept is None:
            latest = self._ring.next_number - 1
            kept = iter([(latest, self._snapshot(self._lane))])
        for number, payload in kept:
            frames = [asker, b"", self._topic, _framed(number), payload]
            await self._answers.send_multipart(frames)
            await asyncio.sleep(0)
        await self._answers.send_multipart([asker, b"", b"", _END, b""])

    def close(self) -> None:
        """Close both sockets."""
        self._publisher.close()
        self._answers.close()


def _framed(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _bind(socket: Any, host: str, port: int, lane: int) -> str:
    """Bind to a lane's port, or to a free one for port 0; returns where."""
    import zmq

    address = f"[{host}]" if ":" in host else host
    socket.bind(f"tcp://{address}:{port + lane if port else '*'}")
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def read_certificate(section: EventsSection) -> Certificate | None:
    """The server's keys, public and secret; None without CURVE. Raises ConfigError."""
    if section.curve is None:
        return None
    import zmq.auth

    try:
        public, secret = zmq.auth.load_certificate(f"{section.curve}/server.key_secret")
        if secret is None:
            raise ValueError(f"No secret key found in {section.curve}/server.key_secret")
        if not Path(section.curve, "clients").is_dir():
            raise ValueError(f"{section.curve}/clients is no folder")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cache.events.curve: {error}. Expected server.key_secret, as "
            "zmq.auth.create_certificates writes it, and in clients/ the public key of each "
            "subscriber. Write them, or set cache.events.curve to null."
        ) from error
    return public, secret


def _secure(socket: Any, certificate: Certificate | None) -> None:
    """Have the socket talk by CURVE alone, if there is a certificate."""
    if certificate is not None:
        socket.curve_publickey, socket.curve_secretkey = certificate
        socket.curve_server = True
