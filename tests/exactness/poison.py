"""Puts wrong bytes where a tier keeps a page, past every check, to see whether a test notices."""

from enum import StrEnum
from pathlib import Path

import torch

from raydix.ids import HostPageId, PageKey
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header
from raydix.runtime.testing.engine import InProcessEngine
from tests.exactness.engines import PAGE_SIZE
from tests.exactness.reference import Prompt
from tests.exactness.states import State

_NAMESPACE = slice(24, 32)
"""The place of the namespace in an object's header."""


class Poison(StrEnum):
    """What a page is replaced by."""

    ZEROS = "zeros"
    ANOTHER = "another prompt's page"


def page_key(prompt: Prompt, page: int) -> PageKey:
    """Key of one full page of a prompt without a salt."""
    keys = extend_keys(root_key(), pack_tokens(prompt), PAGE_SIZE)
    return PageKey(keys[page * KEY_BYTES : (page + 1) * KEY_BYTES])


def object_path(root: Path, prompt: Prompt, page: int, group: int = 0) -> Path:
    """The file of one page in a KV group; there is one model below `root`."""
    # With several groups the name says which.
    name = page_key(prompt, page).hex()
    paths = root.glob(f"*/*/{name}.g{group}.page")
    [path] = paths if group else [*root.glob(f"*/*/{name}.page"), *paths]
    return path


def poison(
    engine: InProcessEngine,
    l3: Path,
    state: State,
    kind: Poison,
    prompt: Prompt,
    other: Prompt,
    *,
    group: int = 0,
) -> None:
    """Replace the last page that `prompt` has in a KV group, in the tier of `state`.

    No window is so short that what follows does not see it.
    """
    page = _last_page(prompt)
    match state:
        case State.L1:
            source, target = _gpu_page(engine, other, group), _gpu_page(engine, prompt, group)
            target.copy_(source if kind is Poison.ANOTHER else torch.zeros_like(target))
        case State.L2:
            payload = _host_payload(engine, prompt, group)
            payload[:] = (
                bytes(_host_payload(engine, other, group))
                if kind is Poison.ANOTHER
                else bytes(len(payload))
            )
        case State.L3:
            path, other_path = (object_path(l3, each, page, group) for each in (prompt, other))
            identity = page_key(prompt, page), group
            _rewrite(path, other_path if kind is Poison.ANOTHER else None, *identity)
        case State.COLD | State.RETRACTION:
            raise ValueError("no page is kept in this state")


def _gpu_page(engine: InProcessEngine, prompt: Prompt, group: int) -> torch.Tensor:
    scheduler, gpu = (
        engine.spawner.latest(ActorKind.SCHEDULER),
        engine.spawner.latest(ActorKind.GPU),
    )
    assert scheduler is not None
    assert gpu is not None
    tree = scheduler.plain._core._lanes[0].l1.tree
    page_id = int(tree.match(root_key(), pack_tokens(prompt)).page_ids[group][_last_page(prompt)])
    return gpu.plain._serving().model.runner._pools[group][page_id]


def poison_rank(
    engine: InProcessEngine, prompt: Prompt, other: Prompt, *, rank: int, num_ranks: int
) -> None:
    """Replace what one rank keeps of that page in L2 by its part of the other prompt's page."""
    shard = KvShard(layout=engine.facts.layout, rank=rank, num_ranks=num_ranks)
    target, source = _host_payload(engine, prompt, 0), _host_payload(engine, other, 0)
    own = shard.byte_range(0)
    for start in range(0, len(target), shard.layer_bytes(0)):
        part = slice(start + own.start, start + own.stop)
        target[part] = source[part]


def _last_page(prompt: Prompt) -> int:
    """The last one that ends before the last token, which no cache serves."""
    return (len(prompt) - 1) // PAGE_SIZE - 1


def _host_payload(engine: InProcessEngine, prompt: Prompt, group: int) -> memoryview:
    host = engine.spawner.latest(ActorKind.HOST_MEMORY)
    assert host is not None
    page_id = host.plain.host._core._index.find(group, page_key(prompt, _last_page(prompt)))
    return host.plain.host.arena.payload(HostPageId(page_id), group)


def _rewrite(path: Path, source: Path | None, key: PageKey, group: int) -> None:
    page = bytearray(path.read_bytes())
    namespace = bytes(page[_NAMESPACE])
    payload = (
        bytes(len(page) - OBJECT_HEADER_BYTES)
        if source is None
        else source.read_bytes()[OBJECT_HEADER_BYTES:]
    )
    page[OBJECT_HEADER_BYTES:] = payload
    fill_header(memoryview(page), ObjectIdentity(namespace, group, key))
    path.write_bytes(page)
