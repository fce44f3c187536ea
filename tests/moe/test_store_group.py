from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore

from raydix.errors import ConfigError
from raydix.moe.dispatch.store_group import StoreGroup


def on_ranks(file: Path, size: int, body: Callable[[StoreGroup], Any]) -> list[Any]:
    """What `body` returns on each rank, which is a thread."""

    def be_rank(rank: int) -> Any:
        return body(StoreGroup("test", FileStore(str(file), size), rank, size))

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(be_rank, rank) for rank in range(size)]
        return [future.result(60) for future in futures]


def test_every_rank_gets_the_values_of_all_in_order(tmp_path: Path) -> None:
    def body(group: StoreGroup) -> Any:
        return group.swap(group.rank()), group.allgather(bytearray([group.Get_rank()]))

    first, second = on_ranks(tmp_path / "store", 3, body)[2]
    assert first == [0, 1, 2]
    assert second == [bytearray([0]), bytearray([1]), bytearray([2])]


def test_torch_gathers_tensors_through_it(tmp_path: Path) -> None:
    def body(group: StoreGroup) -> list[list[int]]:
        parts = [torch.empty(2, dtype=torch.int32) for _ in range(group.size())]
        own = torch.tensor([group.rank(), 2**31 - 1], dtype=torch.int32)
        dist.all_gather(parts, own, group)  # type: ignore[arg-type]
        return [part.tolist() for part in parts]

    assert on_ranks(tmp_path / "store", 2, body)[0] == [[0, 2**31 - 1], [1, 2**31 - 1]]


def test_a_deleted_key_is_still_there_for_slower_ranks(tmp_path: Path) -> None:
    def body(group: StoreGroup) -> list[bytes]:
        group.set(f"key{group.rank()}", b"value%d" % group.rank())
        group.wait(["key0", "key1"], timedelta(seconds=60))
        group.delete_key(f"key{group.rank()}")
        group.swap(None)
        return group.multi_get(["key0", "key1"])

    assert on_ranks(tmp_path / "store", 2, body) == [[b"value0", b"value1"]] * 2


def test_one_rank_s_obstacle_is_everyone_s(tmp_path: Path) -> None:
    def body(group: StoreGroup) -> None:
        group.agree("nixl_ep", None)
        refusal = r"nixl_ep is unavailable: no GPU \(rank 1\).*set experts\.dispatch to auto"
        with pytest.raises(ConfigError, match=refusal):
            group.agree("nixl_ep", "no GPU" if group.rank() == 1 else None)

    on_ranks(tmp_path / "store", 2, body)
