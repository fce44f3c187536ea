"""The arena: geometry, sharing between processes, limits."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace

import numpy as np
import pytest

from raydix.errors import ConfigError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry, plan_arena
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.tiers import host_arena
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena

FULL = KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=3, head_dim=5)
WINDOW = KvGroup(kind=GroupKind.WINDOW, layers=(2,), num_kv_heads=3, head_dim=5, window=32)
ONE_GROUP = KvLayout(page_size=4, dtype="float32", dtype_bytes=4, groups=(FULL,))
TWO_GROUPS = KvLayout(page_size=4, dtype="float32", dtype_bytes=4, groups=(FULL, WINDOW))


def test_arena_holds_as_many_pages_as_its_size_pays_for() -> None:
    page_bytes = ONE_GROUP.host_page_bytes(0)
    for num_pages in (1, 7, 100):
        geometry = plan_arena(ONE_GROUP, num_pages * page_bytes)
        assert geometry.max_pages(0) >= num_pages


def test_large_arena_is_cut_into_slabs() -> None:
    geometry = plan_arena(ONE_GROUP, 1 << 30)
    assert geometry.num_slabs == 16
    assert geometry.slab_bytes % 4096 == 0
    assert geometry.max_pages(0) * geometry.page_bytes[0] > 0.99 * (1 << 30)


@pytest.mark.parametrize("page_mib", [18, 33, 50, 61, 150])
def test_pages_of_which_few_fill_a_slab_leave_no_part_of_the_arena_unused(page_mib: int) -> None:
    state = replace(
        FULL, kind=GroupKind.STATE, layers=(2,), num_kv_heads=page_mib, head_dim=1 << 18
    )
    geometry = plan_arena(replace(ONE_GROUP, groups=(FULL, state)), 16 << 30)

    assert geometry.max_pages(1) * geometry.page_bytes[1] > 0.98 * (16 << 30)
    assert geometry.size_bytes < 1.02 * (16 << 30)


@pytest.mark.parametrize("layout", [ONE_GROUP, TWO_GROUPS])
def test_pages_of_a_group_do_not_overlap(layout: KvLayout) -> None:
    geometry = plan_arena(layout, 64 * layout.host_page_bytes(0))
    for group in range(geometry.num_groups):
        offsets = [
            geometry.page_offset(HostPageId(slab * geometry.pages_per_slab + i), group)
            for slab in range(geometry.num_slabs)
            for i in range(geometry.slab_pages(group))
        ]
        page_ids = np.arange(geometry.num_host_pages, dtype=np.int32)
        page_ids = page_ids[page_ids % geometry.pages_per_slab < geometry.slab_pages(group)]
        assert geometry.page_offsets(page_ids, group) == offsets
        assert np.diff(offsets).min() >= geometry.page_bytes[group]
        assert offsets[0] >= 4 * geometry.num_host_pages
        assert offsets[-1] + geometry.page_bytes[group] <= geometry.size_bytes


@pytest.mark.parametrize(("page", "group"), [(-1, 0), (10**6, 0), (0, 2), (0, -1)])
def test_page_outside_the_arena_is_refused(page: int, group: int) -> None:
    geometry = plan_arena(TWO_GROUPS, 1 << 16)
    with pytest.raises(ValueError, match="outside the arena"):
        geometry.page_offset(HostPageId(page), group)
    with pytest.raises(ValueError, match="outside the arena"):
        geometry.page_offsets(np.array([0, 1, page], dtype=np.int32), group)


def test_id_that_the_larger_group_leaves_unused_is_refused() -> None:
    geometry = plan_arena(TWO_GROUPS, 1 << 16)
    assert geometry.slab_pages(0) < geometry.slab_pages(1) == geometry.pages_per_slab
    with pytest.raises(ValueError, match="outside the arena"):
        geometry.page_offset(HostPageId(geometry.pages_per_slab - 1), 0)
    with pytest.raises(ValueError, match="outside the arena"):
        geometry.page_offsets(np.array([geometry.pages_per_slab - 1, 0], dtype=np.int32), 0)


def test_too_small_an_arena_names_the_least_size() -> None:
    with pytest.raises(ConfigError, match="at least"):
        plan_arena(TWO_GROUPS, 100)


def test_arena_larger_than_memory_proposes_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_arena, "available_memory_bytes", lambda: 100 << 20)
    with pytest.raises(ConfigError, match="bytes_per_node to 80MiB"):
        HostArena.create(ONE_GROUP, 200 << 20)


def test_attached_process_shares_bytes_and_generations() -> None:
    arena = HostArena.create(ONE_GROUP, 1 << 20)
    other = HostArena.attach(arena.location)
    arena.payload(HostPageId(3), 0)[:4] = b"abcd"
    arena.set_generations(int32_array([3]), int32_array([7]))
    assert bytes(other.payload(HostPageId(3), 0)[:4]) == b"abcd"
    assert other.generations[3] == 7
    assert len(other.page(HostPageId(3), 0)) == 64 + ONE_GROUP.payload_bytes(0)
    arena.close()
    other.payload(HostPageId(3), 0)[:4] = b"efgh"
    other.close()
    other.close()


def test_arena_of_a_folder_can_be_given_a_name_there() -> None:
    arena = HostArena.create(ONE_GROUP, 1 << 16, num_threads=1, folder="/dev/shm")
    arena.buffer[-1] = 7
    assert os.readlink(f"/proc/self/fd/{arena.fd}").endswith("(deleted)")
    attached = HostArena.attach(arena.location)
    assert attached.buffer[-1] == 7
    name = f"raydix-test-{os.getpid()}"
    folder = os.open("/dev/shm", os.O_RDONLY)
    os.link(f"/proc/self/fd/{attached.fd}", name, dst_dir_fd=folder, follow_symlinks=True)
    os.unlink(name, dir_fd=folder)
    os.close(folder)
    attached.close()
    arena.close()


def test_attach_with_another_geometry_is_refused() -> None:
    arena = HostArena.create(ONE_GROUP, 1 << 20)
    with pytest.raises(ValueError, match="geometry says"):
        HostArena.attach(replace(arena.location, geometry=plan_arena(ONE_GROUP, 1 << 21)))
    arena.close()


def test_touching_replaces_populate_on_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_arena, "_MADV_POPULATE_WRITE", 9999)
    arena = HostArena.create(ONE_GROUP, 1 << 20)
    assert not any(arena.payload(HostPageId(0), 0))
    arena.close()


def test_pages_survive_the_death_of_their_creator() -> None:
    code = """
        import json, sys
        from dataclasses import asdict
        from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
        from raydix.runtime.tiers.host_arena import HostArena
        group = KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=3, head_dim=5)
        layout = KvLayout(page_size=4, dtype="float32", dtype_bytes=4, groups=(group,))
        arena = HostArena.create(layout, 1 << 20)
        arena.payload(1, 0)[:3] = b"old"
        print(arena.fd, json.dumps(asdict(arena.geometry)), flush=True)
        sys.stdin.read()
    """

    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert owner.stdout is not None
    fd, numbers = owner.stdout.readline().split(" ", 1)
    values = json.loads(numbers)
    geometry = ArenaGeometry(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    )
    assert asdict(geometry) == asdict(plan_arena(ONE_GROUP, 1 << 20))

    told = os.stat(f"/proc/{owner.pid}/fd/{fd}")
    file = (told.st_dev, told.st_ino)
    location = ArenaLocation(pid=owner.pid, fd=int(fd), file=file, geometry=geometry)
    arena = HostArena.attach(location)

    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert bytes(arena.payload(HostPageId(1), 0)[:3]) == b"old"

    heir = HostArena.attach(arena.location)
    assert bytes(heir.payload(HostPageId(1), 0)[:3]) == b"old"
    heir.close()
    arena.close()
