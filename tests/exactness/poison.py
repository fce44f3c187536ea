"""Puts wrong bytes where a tier keeps a page, past every check, to see whether a test notices."""

from enum import StrEnum
from pathlib import Path

import torch

from raydix.ids import HostPageId, PageKey
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.storage.object_header import ObjectIdentity, fill_header
from raydix.runtime.testing.engine import InProcessEngine
from tests.exactness.engines import PAGE_SIZE
from tests.exactness.reference import Prompt
from tests.exactness.states import State

_NAMESPACE = slice(24, 32)
"""Of an object's header."""


class Poison(StrEnum):
    """What a page is replaced by."""

    ZEROS = "zeros"
    ANOTHER = "another prompt's page"


def page_key(prompt: Prompt, page: int) -> PageKey:
    """Key of one full page of a prompt without a salt."""
    keys = extend_keys(root_key(), pack_tokens(prompt), PAGE_SIZE)
    return PageKey(keys[page * KEY_BYTES : (page + 1) * KEY_BYTES])


def object_path(root: Path, prompt: Prompt, page: int) -> Path:
    """The file of one page in KV group 0; there is one model below `root`."""
    # With several groups the name says which.
    name = page_key(prompt, page).hex()
    [path] = [*root.glob(f"*/*/{name}.page"), *root.glob(f"*/*/{name}.g0.page")]
    return path


def poison(
    engine: InProcessEngine, l3: Path, state: State, kind: Poison, prompt: Prompt, other: Prompt
) -> None:
    """Replace the last page that `prompt` has in a cache, in the tier of `state`.

    No window is so short that what follows does not see it.
    """
    page = _last_page(prompt)
    match state:
        case State.L1:
            source, target = _gpu_page(engine, other), _gpu_page(engine, prompt)
            target.copy_(source if kind is Poison.ANOTHER else torch.zeros_like(target))
        case State.L2:
            payload = _host_payload(engine, prompt)
            payload[:] = (
                bytes(_host_payload(engine, other))
                if kind is Poison.ANOTHER
                else bytes(len(payload))
            )
        case State.L3:
            path, other_path = object_path(l3, prompt, page), object_path(l3, other, page)
            _rewrite(path, other_path if kind is Poison.ANOTHER else None, page_key(prompt, page))
        case State.COLD | State.RETRACTION:
            raise ValueError("no page is kept in this state")


def _gpu_page(engine: InProcessEngine, prompt: Prompt) -> torch.Tensor:
    scheduler, gpu = (
        engine.spawner.latest(ActorKind.SCHEDULER),
        engine.spawner.latest(ActorKind.GPU),
    )
    assert scheduler is not None
    assert gpu is not None
    tree = scheduler.plain._core._replica.lanes[0].l1.tree
    page_id = int(tree.match(root_key(), pack_tokens(prompt)).page_ids[0][_last_page(prompt)])
    return gpu.plain._model.runner._pools[0][page_id]


def poison_rank(
    engine: InProcessEngine, prompt: Prompt, other: Prompt, *, rank: int, num_ranks: int
) -> None:
    """Replace what one rank keeps of that page in L2 by its part of the other prompt's page."""
    shard = KvShard(layout=engine.facts.layout, rank=rank, num_ranks=num_ranks)
    target, source = _host_payload(engine, prompt), _host_payload(engine, other)
    own = shard.byte_range(0)
    for start in range(0, len(target), shard.layer_bytes(0)):
        part = slice(start + own.start, start + own.stop)
        target[part] = source[part]


def _last_page(prompt: Prompt) -> int:
    """The last one that ends before the last token, which no cache serves."""
    return (len(prompt) - 1) // PAGE_SIZE - 1


def _host_payload(engine: InProcessEngine, prompt: Prompt) -> memoryview:
    host = engine.spawner.latest(ActorKind.HOST_MEMORY)
    assert host is not None
    page_id = host.plain._core._index.find(0, page_key(prompt, _last_page(prompt)))
    return host.plain._arena.payload(HostPageId(page_id), 0)


def _rewrite(path: Path, source: Path | None, key: PageKey) -> None:
    page = bytearray(path.read_bytes())
    namespace = bytes(page[_NAMESPACE])
    payload = (
        bytes(len(page) - OBJECT_HEADER_BYTES)
        if source is None
        else source.read_bytes()[OBJECT_HEADER_BYTES:]
    )
    page[OBJECT_HEADER_BYTES:] = payload
    fill_header(memoryview(page), ObjectIdentity(namespace, 0, key))
    path.write_bytes(page)
