"""The experts' memory: found by other processes, sized once, filled once, gone with its maker."""

import os
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.tiers import expert_store
from raydix.runtime.tiers.expert_store import ExpertMemory, ExpertStore, StoreContent
from tests.descriptors import descriptors_of

IDENTITY = bytes(range(32))
CONTENT = StoreContent(identity=IDENTITY, num_layers=2, num_experts=3, expert_bytes=64)


@pytest.fixture
def memory():
    made = ExpertMemory.create()
    yield made
    made.close()


def test_what_one_rank_writes_another_reads(memory):
    ours, theirs = ExpertStore.open(memory, CONTENT), ExpertStore.open(memory, CONTENT)

    ours.expert(1, 2)[:] = 7
    assert not theirs.is_filled(1, 2)
    ours.mark_filled(1, 2)

    assert theirs.is_filled(1, 2)
    assert theirs.expert(1, 2).tolist() == [7] * 64
    assert not any(theirs.is_filled(layer, 0) for layer in range(2))


def test_another_process_opens_it_and_what_it_wrote_outlives_it(memory):
    child = os.fork()
    if child == 0:
        store = ExpertStore.open(memory, CONTENT)
        store.expert(0, 1)[:] = 9
        store.mark_filled(0, 1)
        os._exit(0)
    os.waitpid(child, 0)

    store = ExpertStore.open(memory, CONTENT)
    assert store.is_filled(0, 1)
    assert store.expert(0, 1).tolist() == [9] * 64


def test_experts_lie_apart_and_off_the_header(memory):
    store = ExpertStore.open(memory, CONTENT)
    for layer in range(2):
        for expert in range(3):
            store.expert(layer, expert)[:] = 10 * layer + expert
    store.set_weight_fingerprint(IDENTITY[::-1])

    again = ExpertStore.open(memory, CONTENT)
    values = [np.unique(again.expert(layer, e)).tolist() for layer in range(2) for e in range(3)]
    assert values == [[0], [1], [2], [10], [11], [12]]
    assert not again.is_complete


def test_it_is_complete_once_every_expert_is_filled(memory):
    store = ExpertStore.open(memory, CONTENT)
    for layer in range(2):
        for expert in range(3):
            assert not store.is_complete
            store.mark_filled(layer, expert)
    assert store.is_complete


def test_the_weight_fingerprint_is_kept_for_later_ranks(memory):
    assert ExpertStore.open(memory, CONTENT).weight_fingerprint is None
    ExpertStore.open(memory, CONTENT).set_weight_fingerprint(IDENTITY)
    assert ExpertStore.open(memory, CONTENT).weight_fingerprint == IDENTITY


@pytest.mark.parametrize(
    "other",
    [
        StoreContent(identity=bytes(32), num_layers=2, num_experts=3, expert_bytes=64),
        StoreContent(identity=IDENTITY, num_layers=3, num_experts=2, expert_bytes=64),
    ],
)
def test_experts_of_another_checkpoint_are_refused(memory, other):
    ExpertStore.open(memory, CONTENT)
    with pytest.raises(CheckpointError, match="another model or checkpoint"):
        ExpertStore.open(memory, other)


def test_too_little_memory_is_an_error_that_names_the_setting(memory, monkeypatch):
    monkeypatch.setattr(expert_store, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match=r"experts\.host_store is true.* and 1000B"):
        ExpertStore.open(memory, CONTENT)
    assert os.fstat(memory.fd).st_size == 0


def test_nothing_is_left_once_maker_and_ranks_are_done():
    def num_held():
        mapped = Path("/proc/self/maps").read_text()
        return len(descriptors_of("raydix-experts")) + mapped.count("raydix-experts")

    before = num_held()
    memory = ExpertMemory.create()
    store = ExpertStore.open(memory, CONTENT)
    assert num_held() > before

    store.close()
    memory.close()
    assert num_held() == before


@pytest.mark.parametrize("last_call", ["ftruncate", "pwrite"])
def test_a_rank_that_dies_while_it_sizes_the_memory_leaves_the_next_one_free_to(memory, last_call):
    child = os.fork()
    if child == 0:
        call = getattr(os, last_call)

        def call_and_die(*arguments):
            call(*arguments)
            os._exit(0)

        setattr(os, last_call, call_and_die)
        ExpertStore.open(memory, CONTENT)
    os.waitpid(child, 0)

    ExpertStore.open(memory, CONTENT).mark_filled(0, 0)
    assert ExpertStore.open(memory, CONTENT).is_filled(0, 0)
