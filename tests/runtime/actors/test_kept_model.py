"""A model is kept for the time after a sleep only if graphs find everything where it was."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from raydix.errors import AccountingError, ConfigError
from raydix.runtime.actors.gpu_model import GpuModel, HostTimer
from raydix.runtime.actors.kept_model import KeptModel, PreparedModel, addresses_of, why_anew
from raydix.runtime.testing.sleeping_runner import SleepingRunner
from raydix.runtime.tiers.memory_region import HostRegion, MemoryRegion, MovingRegion
from raydix.runtime.tiers.parked_weights import ParkedWeights
from raydix.runtime.tiers.peer_pools import PeerPools

CPU = torch.device("cpu")
PAGES = (4,)
PAGE_BYTES = 4096


class LyingRegion(MovingRegion):
    """Claims that it keeps its place, which it does not."""

    keeps_place = True

    def give_back(self) -> None:
        super().give_back()
        # What was free is somebody else's by the time that memory is taken again.
        self.others = torch.empty(self._num_bytes, dtype=torch.uint8)


class Runner(SleepingRunner):
    def __init__(self) -> None:
        super().__init__(step_s=0.0)
        self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


class Maker:
    """Makes models as a rank does, of pools in regions of one kind, and counts them."""

    def __init__(self, kind: type[HostRegion] | None = HostRegion) -> None:
        self._kind = kind
        self.made: list[PreparedModel] = []
        self.pools: list[Tensor] = []
        self.num_rehearsed = 0
        self.weights = ParkedWeights([nn.Parameter(torch.ones(9), requires_grad=False)], CPU)
        self.kept = KeptModel(self._make, self.weights, CPU)

    def _make(self, num_pages: tuple[int, ...]) -> PreparedModel:
        size = sum(num_pages) * PAGE_BYTES
        regions = () if self._kind is None else (self._region(size),)
        pool = torch.zeros(size, dtype=torch.uint8) if not regions else regions[0].bytes.zero_()
        self.pools.append(pool)
        made = PeerPools(pools=(pool,), regions=regions)

        model = GpuModel(
            runner=(runner := Runner()),
            make_timer=HostTimer,
            make_transfers=lambda *_: pytest.fail("nothing is copied"),
            enter_thread=lambda: None,
            rehearse=self._rehearse,
        )
        self.made.append(
            PreparedModel(
                model=model,
                runner=runner,  # type: ignore[arg-type]
                made=made,
                num_pages=num_pages,
                addresses=addresses_of(made, self.weights),
            )
        )
        return self.made[-1]

    def _region(self, size: int) -> MemoryRegion:
        if self._kind is HostRegion:
            return HostRegion(size)
        assert self._kind is not None
        return self._kind(size, CPU)  # type: ignore[call-arg]

    def _rehearse(self) -> None:
        self.num_rehearsed += 1


def test_a_model_in_place_serves_again_and_has_nothing_to_rehearse() -> None:
    maker = Maker()
    first = maker.kept.prepare(PAGES)
    first.rehearse()
    for _ in range(3):
        maker.pools[0].fill_(255)
        assert first.give_back()
        assert not maker.made[0].made.regions[0].is_taken
        maker.weights.park()
        maker.weights.bring_back()

        again = maker.kept.prepare(PAGES)
        again.rehearse()
        assert again.runner is first.runner
        assert again.make_transfers is first.make_transfers
        # As new pools, whose padding is numbers.
        assert not maker.pools[0].any()
        first = again
    assert (len(maker.made), maker.num_rehearsed) == (1, 1)
    assert maker.made[0].runner.num_released == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [None, MovingRegion])
def test_a_model_whose_pages_may_move_is_made_anew(kind: type[HostRegion] | None) -> None:
    maker = Maker(kind)
    first = maker.kept.prepare(PAGES)
    first.rehearse()
    assert not first.give_back()
    assert maker.made[0].runner.num_released == 1  # type: ignore[attr-defined]
    assert maker.pools[0].untyped_storage().nbytes() == 0

    again = maker.kept.prepare(PAGES)
    again.rehearse()
    assert again.runner is not first.runner
    assert (len(maker.made), maker.num_rehearsed) == (2, 2)


def test_a_model_that_was_kept_although_pages_have_moved_is_found() -> None:
    """Its graphs would read what is somebody else's."""
    maker = Maker(LyingRegion)  # type: ignore[arg-type]
    assert maker.kept.prepare(PAGES).give_back()
    with pytest.raises(AccountingError, match="1 of 2 pools and weights are not where"):
        maker.kept.prepare(PAGES)


def test_a_model_that_was_kept_although_weights_have_moved_is_found() -> None:
    maker = Maker()
    assert maker.kept.prepare(PAGES).give_back()
    prepared = maker.made[0]
    maker.kept._kept = replace(prepared, addresses=(prepared.addresses[0], 4096))
    with pytest.raises(AccountingError, match="1 of 2 pools and weights are not where"):
        maker.kept.prepare(PAGES)


def test_for_another_number_of_pages_one_is_made_and_the_former_goes() -> None:
    maker = Maker()
    assert maker.kept.prepare(PAGES).give_back()
    again = maker.kept.prepare((5,))
    assert again.runner is maker.made[1].runner
    assert maker.made[0].runner.num_released == 1  # type: ignore[attr-defined]
    assert not maker.made[0].made.regions[0].is_taken


def test_one_that_finds_no_room_stays_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(region: HostRegion) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    maker = Maker()
    assert maker.kept.prepare(PAGES).give_back()
    with monkeypatch.context() as patch:
        patch.setattr(HostRegion, "take_again", no_room)
        with pytest.raises(ConfigError, match="no room for pages and graphs"):
            maker.kept.prepare(PAGES)
    assert not maker.made[0].made.regions[0].is_taken
    assert maker.kept.prepare(PAGES).runner is maker.made[0].runner


def test_graphs_are_captured_anew_for_a_reason_that_the_log_tells() -> None:
    stays, moves = HostRegion(1), MovingRegion(1, CPU)
    assert why_anew([stays, stays], is_shared=False) is None
    assert why_anew([], is_shared=False) is None
    assert "reserved" in str(why_anew([stays, moves], is_shared=False))
    assert "each other" in str(why_anew([stays], is_shared=True))
