"""What the CUDA engine does beyond what every transfer engine promises."""

import numpy as np
import pytest
import torch

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.layer_runs import layer_runs
from raydix.runtime.tiers.transfers import Direction, GroupPages, LayerCopy, Transfer
from tests.runtime.tiers.tier_pair import NO_COPIES, Tiers, joined


@pytest.mark.parametrize(
    ("layer_mib", "expected"),
    [(8, [[0], [1], [2], [3]]), (5, [[0, 1], [2, 3]]), (3, [[0, 1, 2], [3]]), (1, [[0, 1, 2, 3]])],
)
def test_layers_share_an_event_until_their_run_is_long_enough(
    layer_mib: int, expected: list[list[int]]
) -> None:
    transfer = layers_of(Direction.LOAD, num_layers=4, layer_bytes=layer_mib << 18, num_pages=4)

    assert [[copy.layer for copy in run] for run in layer_runs(transfer)] == expected


def test_layers_share_an_event_until_their_pieces_are_large_enough_for_the_copy_engine() -> None:
    layers = layers_of(Direction.LOAD, num_layers=17, layer_bytes=64 << 10, num_pages=200)
    small_layers = layers_of(Direction.LOAD, num_layers=17, layer_bytes=16 << 10, num_pages=2000)

    assert [len(run) for run in layer_runs(layers)] == [2] * 8 + [1]
    assert [len(run) for run in layer_runs(small_layers)] == [2] * 8 + [1], (
        "not more than one layer in eight"
    )


def test_a_backup_moves_whole_pages() -> None:
    [run] = layer_runs(layers_of(Direction.BACKUP, num_layers=4, layer_bytes=8 << 18, num_pages=4))

    assert [copy.layer for copy in run] == [0, 1, 2, 3]


def layers_of(
    direction: Direction, *, num_layers: int, layer_bytes: int, num_pages: int
) -> Transfer:
    """`layer_bytes`: of each page."""
    pages = GroupPages(
        page_ids=int32_array(range(1, num_pages + 1)),
        host_page_ids=int32_array(range(num_pages)),
        max_pages=num_pages,
    )

    return Transfer(
        transfer_id=1,
        direction=direction,
        groups={0: pages},
        host_page_ids=pages.host_page_ids,
        generations=int32_array([0] * num_pages),
        layer_copies=tuple(
            LayerCopy(layer=i, group=0, index=i, start=i * layer_bytes, stop=(i + 1) * layer_bytes)
            for i in range(num_layers)
        ),
    )


@pytest.mark.gpu
def test_copies_are_right_before_and_after_the_arena_is_registered() -> None:
    tiers = Tiers("cuda")
    payload = tiers.fill_host_page(1, 0)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)
    assert isinstance(tiers.engine, CudaTransfers)

    tiers.engine.wait_registered()
    tiers.engine.start(tiers.copies(2, [(2, 1)]), NO_COPIES)
    tiers.finish()

    assert (tiers.page(1, 0), tiers.page(2, 0)) == (payload, payload)
    tiers.engine.close()


@pytest.mark.gpu
def test_a_delayed_copy_holds_back_who_waits_for_it_and_its_report() -> None:
    tiers = Tiers("cuda", delay=lambda transfer: torch.cuda._sleep(10_000_000))
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    payload, later = tiers.fill_host_page(1, 0), tiers.fill_host_page(2, 0)

    tiers.engine.start(joined(tiers.copies(1, [(1, 1)]), tiers.copies(2, [(2, 2)])), NO_COPIES)
    tiers.engine.wait_layer(2, 3)
    seen = as_bytes(tiers.pools[0])[1:3].clone()

    assert tiers.done.empty()
    assert [page.numpy().tobytes() for page in seen.cpu()] == [payload, later]
    assert [report.transfer_id for report in tiers.finish()] == [1, 2]
    tiers.engine.close()


@pytest.mark.gpu
def test_a_copy_that_cannot_be_enqueued_is_reported_and_wakes_those_who_wait() -> None:
    def fail(transfer: Transfer) -> None:
        raise OSError("no such stream")

    tiers = Tiers("cuda", delay=fail)
    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)

    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.wait_layer(1, 0)
    with pytest.raises(RuntimeError, match="page copies have failed"):
        tiers.engine.drain()
    tiers.engine.close()
    assert [str(error) for error in tiers.errors] == ["no such stream"]


@pytest.mark.gpu
def test_no_copy_waits_for_a_compiler() -> None:
    from raydix.kernels.pages import page_copy

    tiers = Tiers("cuda")
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    kernels = page_copy._copy_pieces.device_caches[torch.cuda.current_device()][0]
    num_compiled = len(kernels)

    for number, pairs in enumerate(
        ([(1, 1)], [(2, 2), (3, 3)], [(page, page) for page in range(1, 13)])
    ):
        tiers.engine.start(tiers.copies(2 * number, pairs), NO_COPIES)
        tiers.finish()
        tiers.engine.start(NO_COPIES, tiers.copies(2 * number + 1, pairs))
        tiers.finish()

    assert 0 < num_compiled == len(kernels)
    tiers.engine.close()


@pytest.mark.gpu
def test_a_backup_sees_what_was_enqueued_before_it() -> None:
    tiers = Tiers("cuda")
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(50):
        busy = busy @ busy / 64
    tiers.pools[0][3].fill_(1.5)

    tiers.engine.start(NO_COPIES, tiers.copies(1, [(3, 3)]))
    tiers.finish()

    assert np.all(np.frombuffer(tiers.host_page(3, 0), np.float32) == 1.5)
    tiers.engine.close()


@pytest.mark.gpu
def test_waiting_for_a_layer_holds_the_stream_back_and_not_the_caller() -> None:
    tiers = Tiers("cuda")
    assert isinstance(tiers.engine, CudaTransfers)
    tiers.engine.wait_registered()
    payload = tiers.fill_host_page(1, 0)
    torch.cuda.synchronize()

    tiers.engine.start(tiers.copies(1, [(1, 1)]), NO_COPIES)
    tiers.engine.wait_layer(1, 3)
    seen = as_bytes(tiers.pools[0])[1].clone()

    assert seen.cpu().numpy().tobytes() == payload
    tiers.finish()
    tiers.engine.close()
