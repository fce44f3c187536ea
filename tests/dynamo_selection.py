"""Dynamo's SelectionService, asked over pipes: run by a Python that has ai-dynamo-runtime.

The first line names block size and streams; each later one is prompts with their salts. Every line
is answered by one: per prompt and stream, the blocks on device, on to the host, and on to disk.
"""

import asyncio
import inspect
import json
import os
import sys
from typing import Any

NAMES = {"model_name": "model", "routing_group": "group"}
TIERS = ("device_blocks", "host_pinned_blocks", "disk_blocks")


async def value_of(result: Any) -> Any:
    """What a call gives, at once or later."""
    return await result if inspect.isawaitable(result) else result


async def serve() -> None:
    """Answer line after line until there is none."""
    # What libraries print goes to the errors.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from dynamo._core import SelectionService

    service = SelectionService(indexer_threads=1)
    setup = json.loads(sys.stdin.readline())
    for number, (endpoint, replay_endpoint) in enumerate(setup["streams"]):
        worker = {
            **NAMES,
            "worker_id": number,
            "endpoint": f"x://{number}",
            "block_size": setup["block_size"],
            "max_num_batched_tokens": 100_000,
            "data_parallel_start_rank": 0,
            "data_parallel_size": 1,
            "kv_events_endpoints": {0: endpoint},
            "replay_endpoint": replay_endpoint,
        }
        await value_of(service.upsert_worker(worker))
    print(json.dumps("ready"), file=answers, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        scores = [await ask(service, tokens, salt) for tokens, salt in json.loads(line)]
        print(json.dumps(scores), file=answers, flush=True)


async def ask(service: Any, tokens: list[int], salt: str | None) -> dict[str, list[int]]:
    """The overlaps of each stream that has any."""
    query = {**NAMES, "token_ids": tokens} | ({} if salt is None else {"cache_salt": salt})
    scores = await value_of(service.overlap_scores(query))
    return {
        str(worker["worker_id"]): [worker[tier] for tier in TIERS] for worker in scores["workers"]
    }


if __name__ == "__main__":
    asyncio.run(serve())
