"""What is measured for the gate, how ranks agree on it, and what they make of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from raydix.moe.dispatch.protocol import DispatchShape, DispatchSizes
from raydix.moe.overlap_gate import StepTimes
from raydix.moe.sent_rows import SentRows
from raydix.runtime.config.policies import Overlap
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.halving import Halving
from raydix.runtime.model.steps.overlap_times import BareExchange, agree, measure, measured_sizes
from tests.checkpoints import make_checkpoint
from tests.moe.fake_dispatchers import RecordingDispatcher
from tests.runtime.model.steps.plan_driver import CPU, PlanDriver


def load_rank(folder: Path, dispatcher: RecordingDispatcher) -> LoadedModel:
    """The first of two ranks, whose dispatcher keeps rows to itself."""
    make_checkpoint(folder, Family.QWEN3_MOE, seed=1)

    def connect(shape: DispatchShape) -> RecordingDispatcher:
        return dispatcher

    ranks = ExpertRanks(
        rank=0, size=2, connect=connect, max_tokens=64, max_low_latency_tokens=0, spare_seats=1
    )
    return make_dummy_model(folder, device=CPU, dtype=torch.float32, expert_ranks=ranks)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (4095, []),
        (4096, [4096]),
        (16_000, [4096, 8192, 16_000]),
        (16_384, [4096, 8192, 16_384]),
    ],
)
def test_sizes_double_up_to_the_largest_step(most: int, sizes: list[int]) -> None:
    assert measured_sizes(most) == sizes


def test_steps_are_measured_whole_and_halved_and_exchanges_alone(tmp_path: Path) -> None:
    dispatcher = RecordingDispatcher()
    model = load_rank(tmp_path, dispatcher)
    runner = PlanDriver(model).runner
    assert model.decoder.experts is not None
    exchange = BareExchange(model.decoder.experts, model.spec.hidden_size, torch.float32)
    num_layers = model.spec.num_layers
    sent: list[list[tuple[int, ...]]] = []

    def elapsed_s(run: Callable[[], None]) -> float:
        dispatcher.sizes.clear()
        run()
        sent.append([each.tokens_R for each in dispatcher.sizes])
        return float(len(sent))

    # Longer than a request may be, so that it takes two rows.
    [times] = measure([301], runner, exchange, elapsed_s)

    assert times == StepTimes(num_tokens=301, whole_s=1.0, communication_s=2.0, halved_s=3.0)
    whole, alone, halved = sent
    assert whole == alone == [(301, 301)] * num_layers
    assert halved == [(151, 151), (150, 150)] * num_layers
    assert not dispatcher.num_open


def test_exchanges_alone_reach_every_rank_evenly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dispatcher = RecordingDispatcher()
    model = load_rank(tmp_path, dispatcher)
    experts = model.decoder.experts
    assert experts is not None
    exchange = BareExchange(experts, model.spec.hidden_size, torch.float32)

    exchange(SentRows(first=0, num_rows=1000, sizes=DispatchSizes((1000, 1000))))

    ids_TK = dispatcher.ids[0]
    is_held = experts.placement.experts_LP[0] >= 0
    counts = torch.bincount(ids_TK.flatten().long(), minlength=len(is_held))
    assert (counts.numpy() > 0).tolist() == is_held.tolist()
    assert counts[torch.from_numpy(is_held)].float().std() < 0.1 * counts.max()
    assert all(len(set(row)) == len(row) for row in ids_TK.tolist())


def test_ranks_agree_on_the_slowest(tmp_path: Path) -> None:
    def times_of(rank: int) -> list[StepTimes]:
        slow = 1.0 + rank
        return [StepTimes(num_tokens=256, whole_s=slow, communication_s=0.5, halved_s=2 - slow)]

    with ThreadPoolExecutor(2) as pool:
        agreed = list(
            pool.map(lambda rank: agree(tmp_path / "meeting", rank, 2, times_of(rank)), range(2))
        )

    expected = StepTimes(num_tokens=256, whole_s=2.0, communication_s=0.5, halved_s=1.0)
    assert agreed == [(expected,), (expected,)]


def test_the_setting_decides_and_auto_goes_by_what_was_measured() -> None:
    times = tuple(
        StepTimes(num_tokens=size, whole_s=2.0 * size, communication_s=size, halved_s=halved)
        for size, halved in [(256, 600.0), (512, 1100.0), (1024, 1100.0)]
    )

    assert [Halving(Overlap.AUTO, times).includes(size) for size in (512, 1024)] == [False, True]
    assert [Halving(Overlap.ON).includes(size) for size in (2, 1024)] == [True, True]
    assert not Halving(Overlap.OFF, times).includes(1024)
    assert not Halving(Overlap.AUTO).includes(1024)
    stats = Halving(Overlap.AUTO, times).stats()
    assert [each["is_halved"] for each in stats] == [False, False, True]
    assert stats[2]["efficiency"] == round((2048 - 1100) / 1024, 3)
