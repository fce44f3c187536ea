import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.pages.page_push import PeerCounters, PoolPart, meet_peers, push_pages

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


def counters_of(own: torch.Tensor, at_peers: list[int], rank: int) -> PeerCounters:
    return PeerCounters(
        own=own,
        at_peers=torch.tensor(at_peers, device=own.device),
        given_up=torch.zeros(1, dtype=torch.int32, pin_memory=True),
        rank=rank,
    )


@pytest.mark.gpu
def test_ranks_that_meet_set_their_counters_at_all_others() -> None:
    own = [torch.zeros(3, dtype=torch.int32, device="cuda") for _ in range(3)]

    for rank in range(3):
        others = [own[peer][rank:].data_ptr() for peer in range(3) if peer != rank]
        with torch.cuda.stream(torch.cuda.Stream()):
            meet_peers(counters_of(own[rank], others, rank), -5)
    torch.cuda.synchronize()

    assert [counters.tolist() for counters in own] == [[0, -5, -5], [-5, 0, -5], [-5, -5, 0]]


@pytest.mark.gpu
def test_who_gives_up_waits_for_nobody() -> None:
    own, peer = (torch.zeros(2, dtype=torch.int32, device="cuda") for _ in range(2))
    counters = counters_of(own, [peer.data_ptr()], 0)
    with torch.cuda.stream(torch.cuda.Stream()):
        meet_peers(counters, 1)
        met = torch.cuda.current_stream().record_event()
    assert not met.query()

    counters.given_up.fill_(1)

    met.synchronize()
