import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.page_push import PoolPart, announce, push_pages

NUM_PAGES, NUM_LAYERS, LAYER_WORDS = 9, 5, 1300


@pytest.mark.parametrize("num_peers", [1, 3])
def test_layers_of_some_pages_come_to_all_peers_and_nothing_else(
    device: torch.device, num_peers: int
) -> None:
    torch.manual_seed(0)
    shape = (NUM_PAGES, NUM_LAYERS, LAYER_WORDS)
    pool = torch.randint(0, 1 << 60, shape, device=device)
    peers = [torch.zeros_like(pool) for _ in range(num_peers)]
    pages = torch.tensor([7, 1, 4], dtype=torch.int32, device=device)

    push_pages(
        PoolPart(pool=pool, first_layer=1, num_layers=3),
        pages,
        torch.tensor([peer.data_ptr() for peer in peers], device=device),
    )

    expected = torch.zeros_like(pool)
    expected[pages.long(), 1:4] = pool[pages.long(), 1:4]
    assert all(torch.equal(peer, expected) for peer in peers)


def test_oddly_sized_layers_are_refused(device: torch.device) -> None:
    pool = torch.zeros(3, 2, 3, dtype=torch.int32, device=device)
    pages = torch.zeros(1, dtype=torch.int32, device=device)

    with pytest.raises(ValueError, match="A layer of 12 bytes"):
        push_pages(PoolPart(pool=pool, first_layer=0, num_layers=1), pages, pages.long())


@pytest.mark.gpu
def test_a_counter_of_each_peer_is_set() -> None:
    counters = torch.zeros(4, dtype=torch.int32, device="cuda")
    addresses = torch.tensor([counters[index:].data_ptr() for index in (1, 3)], device="cuda")

    announce(addresses, -5)

    assert counters.tolist() == [0, -5, 0, -5]
