"""Real actors, tiny tiers, ever-changing storage: every answer is exact, and nothing is left."""

import asyncio
import contextlib
import math
import random
from collections import Counter
from typing import Any

import pytest

from raydix.errors import DeadlineExceeded
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.model.families.table import Family
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import assert_all_exact, engine_config, make_prompts
from tests.exactness.reference import GREEDY, Expected, References

NUM_REQUESTS = 200
NUM_AT_ONCE = 12
PROMPTS = make_prompts(91, [40, 60, 80, 100] * 6, num_shared=32)
WEATHER = (
    Faults(),
    Faults(max_delay_s=0.01),
    Faults(latency_s=0.05),
    Faults(latency_s=math.inf),
    Faults(failure_fraction=0.4),
    Faults(corrupt_fraction=0.4),
    Faults(refuses_writes=True),
)
REQUESTS_PER_WEATHER = 6


def set_weather(engine: InProcessEngine, faults: Faults) -> None:
    storage = engine.spawner.latest(ActorKind.STORAGE)
    assert storage is not None
    backend = storage.plain.backend
    assert isinstance(backend, FakeBackend)
    backend.set_faults(faults)


async def stream(
    engine: InProcessEngine, draw: random.Random, index: int
) -> tuple[int, str, list[RequestOutput]]:
    """One request for a random prompt: which one, how it ended, and its last, complete output."""
    which = draw.randrange(len(PROMPTS))
    params: dict[str, Any] = {"max_tokens": draw.randrange(1, 24), **GREEDY}
    deadline_s = 0.001 if draw.random() < 0.05 else None
    num_wanted = draw.randrange(1, 4) if draw.random() < 0.2 else None
    outputs: list[RequestOutput] = []
    options = RequestOptions(deadline_s=deadline_s, priority=draw.randrange(2))
    generator = engine.client.generate(list(PROMPTS[which]), params, f"r{index}", options)
    try:
        async with contextlib.aclosing(generator):
            async for output in generator:
                outputs.append(output)
                if num_wanted is not None and len(outputs) >= num_wanted:
                    return which, "left", outputs
    except DeadlineExceeded:
        return which, "late", outputs
    return which, "finished", outputs


@pytest.mark.part
@pytest.mark.parametrize(("family", "dp", "tp"), [(Family.QWEN3, 2, 1), (Family.GEMMA3, 1, 2)])
async def test_no_answer_differs_whatever_storage_does(
    family: Family, dp: int, tp: int, references: References
) -> None:
    reference = references(family)
    expected: list[Expected] = reference.expect(PROMPTS)
    config = engine_config(
        reference.folder,
        parallel={"dp": dp, "tp": tp},
        cache={
            "l1": {"num_pages": 24},
            "l2": {"bytes_per_node": "192KiB"},
            "l3": {"backend": "fake", "seed": 7},
            "prefetch": {"strategy": "timeout"},
        },
    )
    draw = random.Random(5)
    turns = asyncio.Semaphore(NUM_AT_ONCE)
    attaching = asyncio.Lock()

    async with in_process_engine(config) as engine:

        async def take_turn(index: int) -> tuple[int, str, list[RequestOutput]]:
            async with turns:
                if index % REQUESTS_PER_WEATHER == 0 and not attaching.locked():
                    set_weather(engine, draw.choice(WEATHER))
                if index in (NUM_REQUESTS // 3, 2 * NUM_REQUESTS // 3):
                    async with attaching:
                        set_weather(engine, Faults())
                        await engine.attach_storage({"backend": "fake", "seed": index})
                return await stream(engine, draw, index)

        results = await asyncio.gather(*(take_turn(index) for index in range(NUM_REQUESTS)))
        set_weather(engine, Faults())
        stats = await engine.check()
        told = [(expected[which], outputs[-1]) for which, _, outputs in results if outputs]
        await assert_all_exact(engine, *zip(*told, strict=True))

    endings = Counter(ending for _, ending, _ in results)
    assert endings["finished"] > NUM_REQUESTS / 2
    assert endings["left"] > 0
    assert stats["host"]["leases"] == 0
    assert stats["host"]["l3_reads_ok"] > 0
    print(
        endings,
        {name: count for name, count in stats["host"].items() if name.startswith("l3_") and count},
    )
