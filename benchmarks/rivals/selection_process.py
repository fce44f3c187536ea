"""Dynamo's SelectionService behind a pipe; runs with a Python that has it, and nothing of Raydix.

    pip install ai-dynamo-runtime==1.6.1 pyzmq msgpack

Reads one JSON object a line: how many nodes there are, then `keys`, `choose` and `end`; it answers
the first, and `choose` with the number of the node. Keys go to the service as vLLM's events over
ZMQ; before it is asked it has followed all of them, which a block at the end of each batch shows.
"""

import asyncio
import json
import sys
import time

import msgpack
import zmq
from dynamo._core import SelectionService

MODEL = {"model_name": "m", "routing_group": "default"}
_MARK = 1 << 30
"""The numbers of blocks from here on are marks."""
_TURN_S = 0.0005


class Selection:
    """Owns: the service, and a publisher of events per node."""

    def __init__(self, num_nodes: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._service = SelectionService(indexer_threads=1)
        self._context = zmq.Context()
        self._sockets = []
        self._ports = []
        for _ in range(num_nodes):
            socket = self._context.socket(zmq.PUB)
            self._ports.append(socket.bind_to_random_port("tcp://127.0.0.1"))
            self._sockets.append(socket)
        self._numbers = [0] * num_nodes
        self._marks: list[int | None] = [None] * num_nodes
        self._num_marks = 0
        self._sent: dict[int, object] = {}

    async def begin(self) -> None:
        """Make the nodes known, and wait until each of them is heard."""
        for node, port in enumerate(self._ports):
            await self._service.upsert_worker(
                {
                    **MODEL,
                    "worker_id": node,
                    "endpoint": f"x://{node}",
                    "block_size": self._block_tokens,
                    "max_num_batched_tokens": 8192,
                    "data_parallel_start_rank": 0,
                    "data_parallel_size": 1,
                    "kv_events_endpoints": {0: f"tcp://127.0.0.1:{port}"},
                }
            )
        for node in range(len(self._ports)):
            # What is published before the service has subscribed is lost.
            while not await self._has_mark(node):
                self._publish(node, [self._new_mark(node)])
                await asyncio.sleep(0.05)

    def tell(self, node: int, removed: list[int], stored: list[int], parent: int | None) -> None:
        """Publish what has left a node and come to it, and a mark in place of the last one."""
        former = self._marks[node]
        events: list[dict[str, object]] = []
        gone = [each + 1 for each in removed] + ([] if former is None else [former + 1])
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        if stored:
            events.append(self._stored(stored, parent))
        events.append(self._new_mark(node))
        self._publish(node, events)

    async def choose(self, number: int, blocks: list[int], num_tokens: int) -> int:
        """The node of the service's choice, with the request booked there."""
        for node in range(len(self._ports)):
            while not await self._has_mark(node):
                await asyncio.sleep(_TURN_S)
        tokens = self._tokens(blocks)[:num_tokens]
        answer = await self._service.select_and_reserve({**MODEL, "token_ids": tokens})
        self._sent[number] = answer["selection_id"]
        return int(answer["worker_id"])

    async def note_end(self, number: int) -> None:
        """The prompt of a request is computed; what was booked for it is free."""
        booking = self._sent.pop(number)
        await self._service.prefill_complete(booking)
        await self._service.free_reservation(booking)

    def _new_mark(self, node: int) -> dict[str, object]:
        self._num_marks += 1
        self._marks[node] = _MARK + self._num_marks
        return self._stored([_MARK + self._num_marks], None)

    def _stored(self, blocks: list[int], parent: int | None) -> dict[str, object]:
        return {
            "type": "BlockStored",
            "block_hashes": [block + 1 for block in blocks],
            "parent_block_hash": None if parent is None else parent + 1,
            "token_ids": self._tokens(blocks),
            "block_size": self._block_tokens,
            "lora_id": None,
            "medium": "GPU",
        }

    def _tokens(self, blocks: list[int]) -> list[int]:
        return [token for block in blocks for token in [block + 1] * self._block_tokens]

    def _publish(self, node: int, events: list[dict[str, object]]) -> None:
        number = self._numbers[node].to_bytes(8, "big")
        self._numbers[node] += 1
        self._sockets[node].send_multipart([b"", number, msgpack.packb([time.time(), events, 0])])

    async def _has_mark(self, node: int) -> bool:
        mark = self._marks[node]
        if mark is None:
            return False
        scores = await self._service.overlap_scores({**MODEL, "token_ids": self._tokens([mark])})
        return any(
            worker["worker_id"] == node and worker["device_blocks"] > 0
            for worker in scores["workers"]
        )


async def serve() -> None:
    """Answer until the pipe ends."""
    selection = Selection(**json.loads(sys.stdin.readline()))
    await selection.begin()
    print("null", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        match message.pop("kind"):
            case "keys":
                selection.tell(**message)
            case "choose":
                print(await selection.choose(**message), flush=True)
            case "end":
                await selection.note_end(**message)


if __name__ == "__main__":
    asyncio.run(serve())
