"""A subscriber of KV events that goes by what docs/events.md says, around a naive indexer."""

import asyncio
import contextlib
from typing import Any

import zmq
import zmq.asyncio

from tests.naive_indexer import NaiveIndexer

_END = b"\xff" * 8


class KvSubscriber:
    """Owns: an index of one stream, and the number of the batch that it takes next."""

    def __init__(
        self, context: Any, endpoint: str, replay_endpoint: str, curve: Any = None
    ) -> None:
        """Subscribe. `curve`: sets a socket's keys."""
        self.indexer = NaiveIndexer()
        self.num_replays = self.num_snapshots = 0
        self._next = 0
        self._live = context.socket(zmq.SUB)
        self._again = context.socket(zmq.DEALER)
        for socket in (self._live, self._again):
            socket.linger = 0
            if curve is not None:
                curve(socket)
        self._live.subscribe(b"")
        self._live.connect(endpoint)
        self._again.connect(replay_endpoint)
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            _, number, payload = await self._live.recv_multipart()
            sequence = int.from_bytes(number, "big")
            if sequence > self._next:
                await self._ask_again()
            self._take(sequence, payload)

    def _take(self, sequence: int, payload: bytes) -> None:
        # What a snapshot has told of already comes once more.
        if sequence == self._next:
            self.indexer.take(payload)
            self._next += 1

    async def _ask_again(self) -> None:
        self.num_replays += 1
        await self._again.send_multipart([b"", self._next.to_bytes(8, "big")])
        while True:
            _, _, number, payload = await self._again.recv_multipart()
            if number == _END:
                return
            sequence = int.from_bytes(number, "big")
            if sequence > self._next:
                self.num_snapshots += 1
                self._next = sequence
            self._take(sequence, payload)

    async def close(self) -> None:
        """End; raises what the indexer has found."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._live.close()
        self._again.close()

    def raise_failure(self) -> None:
        """Raise what the indexer has found, if anything."""
        if self._task.done():
            self._task.result()
