"""How KV groups of different use share L2: a FULL group, and the windows of few checkpoints."""

import pytest

from raydix.ids import PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import HostPageState
from tests.runtime.cache.host.host_values import make_key

FULL, WINDOW = 0, 1
WINDOW_PAGES = 4
PAGE_BYTES = (128, 640)
SLAB_BYTES = 2560
NUM_SLABS = 64


class Chains:
    """L2 as chains are kept in it: all FULL pages, and one window before the end of each."""

    def __init__(self) -> None:
        self.index = HostIndex(
            ArenaGeometry(
                num_slabs=NUM_SLABS,
                slab_bytes=SLAB_BYTES,
                slabs_offset=4096,
                pages_per_slab=SLAB_BYTES // min(PAGE_BYTES),
                page_bytes=PAGE_BYTES,
                payload_bytes=tuple(size - 64 for size in PAGE_BYTES),
            )
        )
        self.kept: list[tuple[list[PageKey], list[PageKey]]] = []
        """Keys per group, the latest chain last."""

    def keep(self, num_chains: int, num_pages: int) -> None:
        for _ in range(num_chains):
            keys = [make_key(f"{len(self.kept)}-{place}") for place in range(num_pages)]
            self.kept.append((keys, keys[-WINDOW_PAGES:]))
            for group, of_group in enumerate(self.kept[-1]):
                for key in reversed(of_group):
                    page_id = self.index.allocate(group)
                    assert page_id is not None, "a group starves"
                    self.index.publish(page_id, key)

    def num_whole(self) -> int:
        """How many of the latest chains in a row are there in both groups."""
        count = 0
        for of_groups in reversed(self.kept):
            if any(self.index.find(g, key) is None for g in (0, 1) for key in of_groups[g]):
                break
            count += 1
        return count

    def share(self, group: int) -> float:
        """The group's share of the arena's bytes."""
        num_pages = sum(self.index.count_by_state(group)[state] for state in HostPageState)
        return num_pages * PAGE_BYTES[group] / (NUM_SLABS * SLAB_BYTES)


@pytest.mark.parametrize("earlier", [[], [8], [120], [120, 8], [8, 120]])
@pytest.mark.parametrize(("num_pages", "window_share"), [(8, 5 * 4 / 28), (120, 5 * 4 / 140)])
def test_room_follows_use_whatever_was_kept_before(
    earlier: list[int], num_pages: int, window_share: float
) -> None:
    chains = Chains()
    for other in earlier:
        chains.keep(200, other)

    chains.keep(200, num_pages)

    chain_bytes = num_pages * PAGE_BYTES[FULL] + WINDOW_PAGES * PAGE_BYTES[WINDOW]
    num_ideal = NUM_SLABS * SLAB_BYTES // chain_bytes
    assert chains.num_whole() >= 0.8 * num_ideal
    assert chains.share(WINDOW) == pytest.approx(window_share, abs=0.06)
