"""What L2 and L3 hold, by their pages and objects alone, and how far a lookup that finds everything
would get.
"""

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.page_key import (
    MIRROR_KEY_BYTES,
    extend_keys,
    pack_tokens,
    root_key,
    split_keys,
)
from tests.simulation import reuse_laws
from tests.simulation.cluster import Cluster
from tests.simulation.node import Node
from tests.simulation.reuse_laws import Copies


def l2_names(node: Node) -> set[tuple[int, PageKey]]:
    """Groups and keys of the pages that L2 holds."""
    if node.host is None:
        return set()
    pages = map(HostPageId, range(node.geometry.num_host_pages))
    names = map(node.host._index.name, pages)
    return {name for name in names if name is not None}


def l2_pages(node: Node) -> Copies:
    """Groups and keys of the pages that L2 holds, by page and generation: no copy is another one's
    equal.
    """
    if node.host is None:
        return {}
    index = node.host._index
    pages = map(HostPageId, range(node.geometry.num_host_pages))
    return {
        (page, index.generation(page)): name
        for page in pages
        if (name := index.name(page)) is not None
    }


def has_made_way(node: Node, prompt: list[int], cache_salt: str | None, former: Copies) -> bool:
    """Whether pages of a prompt had to leave L2, see `reuse_laws.has_made_way`."""
    if node.host_memory is None:
        return False
    settings = node.settings
    root = root_key(cache_salt=cache_salt)
    keys = split_keys(extend_keys(root, pack_tokens(prompt), settings.page_size))
    starts = [0 if reach is None else max(0, len(keys) - reach) for reach in settings.reaches]
    needed = {(group, key) for group, start in enumerate(starts) for key in keys[start:]}
    told = node.host_memory.published
    had = {(group, key) for group, key in needed if (group, key[:MIRROR_KEY_BYTES]) in told}
    return reuse_laws.has_made_way(needed, had, former, l2_pages(node))


def l3_names(node: Node) -> set[tuple[int, PageKey]]:
    """Groups and keys of the objects that L3 holds, sound or not."""
    return set() if node.storage is None else {*node.storage.objects}


def num_stored_tokens(cluster: Cluster, prompt: list[int], cache_salt: str | None) -> int:
    """The longest prefix, in whole pages, whose pages of every group are sound objects of L3.

    A group that looks back over a window needs the last pages alone.
    """
    storage, settings = cluster.node.storage, cluster.settings
    assert storage is not None
    root = root_key(cache_salt=cache_salt)
    keys = split_keys(extend_keys(root, pack_tokens(prompt), settings.page_size))
    sound = storage.objects.keys() - storage.bad_names

    def is_stored(end: int) -> bool:
        starts = [0 if reach is None else max(0, end - reach) for reach in settings.reaches]
        return all(
            (group, key) in sound for group, start in enumerate(starts) for key in keys[start:end]
        )

    num_pages = next(
        (end for end in range(settings.reusable_pages(len(prompt)), 0, -1) if is_stored(end)), 0
    )
    return num_pages * settings.page_size
