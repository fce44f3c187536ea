"""What L2 has and L3 lacks goes to a slow L3: each page once, and without a pause."""

from dataclasses import replace

import pytest

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import ObjectStatus, WriteObjects
from raydix.runtime.messages.plan import DeviceSampling
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.node import Node
from tests.simulation.storage import SimulatedStorage
from tests.simulation.stored_prefix import l2_names, l3_names
from tests.simulation.workload import BASE_SETTINGS, STORAGE
from tests.simulation.world import World

NUM_PROMPTS, PROMPT_TOKENS = 12, 41
WRITE_S, FAILURE_FRACTION = 0.03, 0.3
SLOW = replace(STORAGE, batch_pages=1, max_write_batches=1, max_write_attempts=3, put_off_s=1.0)
"""One page at a time."""


def test_a_slow_storage_gets_each_page_once_as_soon_as_it_has_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes: list[tuple[float, PageKey, ObjectStatus]] = []
    write = SimulatedStorage._write

    def write_and_note(self: SimulatedStorage, order: WriteObjects) -> list[ObjectStatus]:
        statuses = write(self, order)
        [key], [status] = split_keys(order.keys), statuses
        writes.append((self._world.now_s, key, status))
        return statuses

    monkeypatch.setattr(SimulatedStorage, "_write", write_and_note)
    faults = Faults(storage_s=WRITE_S, storage_failure_fraction=FAILURE_FRACTION)
    node = Node(World(0, faults), BASE_SETTINGS, l2_pages=400, storage=SLOW)
    engine = Cluster(node)
    engine.run_until(engine.now_s + 1.0)
    began_s = engine.now_s
    for number in range(NUM_PROMPTS):
        _submit(engine, number)
    engine.run(lambda: len(l2_names(node)) > 0 and l2_names(node) == l3_names(node), limit_s=300.0)

    took_s, num_writes = writes[-1][0] - began_s, len(writes)
    engine.run_until(engine.now_s + 10.0)

    accepted = [key for _, key, status in writes if status is ObjectStatus.OK]
    assert len(accepted) == len(set(accepted)) == len(l3_names(node))
    # Each write takes its time, one that fails too, and what failed thrice has been put off.
    assert took_s <= 2.0 * WRITE_S * num_writes + SLOW.put_off_s


def _submit(engine: Cluster, number: int) -> None:
    message = SubmitRequest(
        asking=engine.client("client").next_asking(),
        request_id=f"r{number}",  # type: ignore[arg-type]
        token_ids=int32_array([number, *range(PROMPT_TOKENS - 1)]),
        sampling=DeviceSampling(seed=number),
        max_tokens=1,
    )
    engine.submit(message)
