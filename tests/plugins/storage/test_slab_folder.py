"""A folder of slabs: one engine at a time, and every extent free or named."""

from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.ids import PageKey
from raydix.plugins.storage.slab import SlabName
from raydix.plugins.storage.slab_folder import SlabFolder

SIZE_BYTES = 5000


class Registered:
    """The part of USRBIO that a folder uses. Owns: the descriptors that are registered."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def register_fd(self, fd: int) -> None:
        self.fds.append(fd)

    def deregister_fd(self, fd: int) -> None:
        self.fds.remove(fd)


def name(number: int) -> SlabName:
    return SlabName(bytes(8), 0, PageKey(number.to_bytes(32, "big")))


def test_folder_is_one_engines_until_it_is_closed(tmp_path: Path) -> None:
    usrbio = Registered()
    first = SlabFolder(tmp_path, usrbio)
    first.take_extent(SIZE_BYTES)
    with pytest.raises(ConfigError, match="in use by another engine"):
        SlabFolder(tmp_path, usrbio)

    first.close()
    assert usrbio.fds == []
    SlabFolder(tmp_path, usrbio).close()


def test_only_new_and_whole_objects_are_published_and_other_extents_are_free(
    tmp_path: Path,
) -> None:
    folder = SlabFolder(tmp_path, Registered())
    taken = [(name(number), folder.take_extent(SIZE_BYTES)) for number in (1, 1, 2)]

    new = folder.publish(taken, [True, True, False])

    assert new == {name(1): taken[0][1]}
    assert folder.find(name(2)) is None
    folder.check()
    assert {folder.take_extent(SIZE_BYTES), folder.take_extent(SIZE_BYTES)} == {
        place for _, place in taken[1:]
    }
    folder.close()


def test_objects_are_in_their_extents_after_a_restart(tmp_path: Path) -> None:
    folder = SlabFolder(tmp_path, Registered())
    taken = [(name(number), folder.take_extent(SIZE_BYTES)) for number in (1, 2)]
    folder.publish(taken, [True, True])
    folder.remove([name(2), name(9)])
    folder.close()

    again = SlabFolder(tmp_path, Registered())

    assert dict(again) == {name(1): taken[0][1]}
    assert again.take_extent(SIZE_BYTES) != taken[0][1]
    again.check()
    again.close()
