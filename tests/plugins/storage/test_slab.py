"""Extents and their index: what is handed out when, and what a restart finds."""

import errno
import os
import random
from pathlib import Path

import pytest

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.plugins.storage import slab as slab_module
from raydix.plugins.storage.slab import (
    Slab,
    SlabIndex,
    SlabName,
    SlabPlace,
    extent_bytes_for,
)
from tests.descriptors import descriptors_of


def name(number: int) -> SlabName:
    return SlabName(b"n" * 8, number % 3, PageKey(number.to_bytes(32, "big")))


def place(extent: int) -> SlabPlace:
    return SlabPlace(4096, extent, 4000 + extent)


def test_name_survives_as_text() -> None:
    assert SlabName.parse(str(name(7))) == name(7)


@pytest.mark.parametrize(("size", "extent"), [(1, 4096), (4096, 4096), (4097, 8192)])
def test_extents_are_multiples_of_a_memory_page(size: int, extent: int) -> None:
    assert extent_bytes_for(size) == extent


def test_extent_given_back_under_a_reader_is_not_handed_out(tmp_path: Path) -> None:
    slab = Slab(tmp_path / "slab", 4096)
    extent = slab.take()
    slab.start_read(extent)
    slab.start_read(extent)
    slab.give_back(extent)

    taken = {slab.take() for _ in range(100)}
    assert extent not in taken

    slab.end_read(extent)
    slab.check()
    assert extent not in {slab.take() for _ in range(100)}
    slab.end_read(extent)
    assert slab.take() == extent
    slab.check()
    slab.close()


def test_random_use_keeps_the_books(tmp_path: Path) -> None:
    rng = random.Random(5)
    slab = Slab(tmp_path / "slab", 4096)
    taken: list[int] = []
    reads: list[int] = []

    for _ in range(2000):
        match rng.choice("tgre"):
            case "t":
                extent = slab.take()
                assert extent not in taken
                assert extent not in reads
                taken.append(extent)
            case "g" if taken:
                slab.give_back(taken.pop(rng.randrange(len(taken))))
            case "r" if taken:
                reads.append(rng.choice(taken))
                slab.start_read(reads[-1])
            case "e" if reads:
                slab.end_read(reads.pop(rng.randrange(len(reads))))
        slab.check()
    slab.close()


def test_slab_notices_books_that_do_not_add_up(tmp_path: Path) -> None:
    slab = Slab(tmp_path / "slab", 4096)
    slab.take()
    slab._free.pop()
    with pytest.raises(AccountingError, match="64 extents: 1 taken, 62 free"):
        slab.check()
    slab.close()


def test_index_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    index = SlabIndex(tmp_path / "index.log")
    index.add((name(number), place(number)) for number in range(10))
    assert index.remove([name(3), name(5)]) == [place(3), place(5)]
    index.add([(name(3), place(5))])
    before = list(index)
    index.close()
    again = SlabIndex(tmp_path / "index.log")
    assert list(again) == before
    assert (again.find(name(3)), again.find(name(5))) == (place(5), None)
    again.close()


@pytest.mark.parametrize("cut", [1, 30, 59])
def test_torn_end_of_the_log_costs_its_last_record_alone(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "index.log"
    index = SlabIndex(path)
    index.add((name(number), place(number)) for number in range(4))
    index.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = SlabIndex(path)
    assert [found for found, _ in again] == [name(0), name(1), name(2)]
    again.add([(name(9), place(9))])
    again.close()
    assert SlabIndex(path).find(name(9)) == place(9)


def test_flipped_bit_in_the_log_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "index.log"
    index = SlabIndex(path)
    index.add((name(number), place(number)) for number in range(4))
    index.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 5] ^= 4
    path.write_bytes(data)
    assert [found for found, _ in SlabIndex(path)] == [name(0), name(1)]


def test_log_of_removals_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab_module, "_COMPACT_SLACK_RECORDS", 20)
    path = tmp_path / "index.log"
    index = SlabIndex(path)
    for turn in range(100):
        index.add([(name(turn), place(0))])
        if turn:
            index.remove([name(turn - 1)])
    assert path.stat().st_size < 40 * 64
    index.close()
    assert list(SlabIndex(path)) == [(name(99), place(0))]


def test_of_two_names_in_one_extent_the_later_one_is_left_after_a_restart(tmp_path: Path) -> None:
    """The first one's removal was not logged, and its extent was used again."""
    index = SlabIndex(tmp_path / "index.log")
    index.add([(name(1), place(1)), (name(2), place(2))])
    index._append = lambda records: None  # type: ignore[method-assign]
    index.remove([name(1)])
    del index._append  # type: ignore[method-assign]
    index.add([(name(3), place(1))])
    index.close()
    again = SlabIndex(tmp_path / "index.log")
    assert list(again) == [(name(2), place(2)), (name(3), place(1))]
    again.close()


def test_slab_that_cannot_grow_loses_no_extents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = Slab(tmp_path / "slab", 4096)

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                slab.take()
            slab.check()
    assert [slab.take() for _ in range(3)] == [0, 1, 2]
    slab.check()
    slab.close()


def test_log_that_cannot_be_replaced_grows_and_stays_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slab_module, "_COMPACT_SLACK_RECORDS", 4)
    path = tmp_path / "index.log"
    index = SlabIndex(path)
    open_files = descriptors_of(str(tmp_path))
    num_tries = [0]

    def refuse(self: Path, target: Path) -> None:
        num_tries[0] += 1
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        for turn in range(50):
            index.add([(name(turn), place(0))])
            index.remove([name(turn)])
    index.add([(name(99), place(0))])
    assert 1 < num_tries[0] < 8
    assert descriptors_of(str(tmp_path)) == open_files
    index.close()
    assert list(SlabIndex(path)) == [(name(99), place(0))]


def test_removal_that_cannot_be_logged_is_still_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = SlabIndex(tmp_path / "index.log")
    index.add([(name(1), place(1))])
    index.close()
    assert index.remove([name(1)]) == [place(1)]
    assert "fail verification" in caplog.text
    with pytest.raises(OSError):
        index.add([(name(2), place(2))])
    assert name(2) not in index
