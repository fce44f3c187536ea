"""What L3 holds, by its objects alone, and how far a lookup that finds everything would get."""

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, split_keys
from tests.simulation.cluster import Cluster
from tests.simulation.node import Node


def l2_names(node: Node) -> set[tuple[int, PageKey]]:
    """Groups and keys of the pages that L2 holds."""
    if node.host is None:
        return set()
    pages = map(HostPageId, range(node.geometry.num_host_pages))
    names = map(node.host._index.name, pages)
    return {name for name in names if name is not None}


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
