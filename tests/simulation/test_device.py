"""No page, here a real one, is published or reused before its copy has completed.

The mutants show that the comparison of contents would notice. Their bugs show only where copies and
steps run beside the host, so they are looked for on a GPU.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from raydix.errors import AccountingError
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.transfers import Direction, Transfer
from tests.simulation.device_ranks import DeviceWorld
from tests.simulation.faults import Faults
from tests.simulation.layouts import PAGE_SIZE
from tests.simulation.test_mutants import (
    NO_QUARANTINE,
    SMALL_L1,
    Case,
    commit_before_acknowledgement,
    early_lease_end,
    end_leases_when_granted,
)
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload

MAX_SEEDS = 250
LAZY_ACKNOWLEDGEMENTS = Faults(copy_s=0.1, link_delay_s=0.0005)
LARGE_PAGES = KvLayout(
    page_size=PAGE_SIZE,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=8, head_dim=512),),
)
"""128 KiB per layer: the copy engine moves them."""
CROWDED = Workload(
    seed=0,
    settings=SMALL_L1,
    l2_pages=8,
    storage=None,
    faults=LAZY_ACKNOWLEDGEMENTS,
    num_requests=60,
)
"""Pages of both tiers change hands all the time."""


def run_on_device(workload: Workload, device: str) -> None:
    """`run_workload` over real pages."""
    world = DeviceWorld(device, workload.seed)
    try:
        run_workload(workload, world.make_rank)
    finally:
        world.close()


@pytest.mark.parametrize(
    ("device", "layout"),
    [
        pytest.param("cpu", BASE_SETTINGS.layout, id="cpu"),
        pytest.param("cuda", BASE_SETTINGS.layout, id="kernel", marks=pytest.mark.gpu),
        pytest.param("cuda", LARGE_PAGES, id="copy engine", marks=pytest.mark.gpu),
    ],
)
def test_every_page_holds_what_its_reader_expects(device: str, layout: KvLayout) -> None:
    for seed in range(4):
        settings = replace(SMALL_L1, layout=layout)
        run_on_device(replace(CROWDED, seed=seed, settings=settings), device)


def no_generation_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU actor does not compare the generations of the host pages that it has read."""
    monkeypatch.setattr(Transfer, "is_stale", lambda self, generations: False)


def no_stream_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps do not wait for loads, backups not for steps."""
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)


def early_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is reported once it is enqueued."""

    def report_at_once(self: CudaTransfers, direction: Direction) -> None:
        while (job := self._enqueued[direction].get()) is not None:
            self._report(job, job.enqueued_s)

    monkeypatch.setattr(CudaTransfers, "_complete_all", report_at_once)


def slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies begin some 10 ms after they were enqueued, so that a slow host cannot miss them."""
    enqueue = CudaTransfers._enqueue

    def enqueue_late(self: CudaTransfers, job: Any) -> None:
        torch.cuda._sleep(20_000_000)
        enqueue(self, job)

    monkeypatch.setattr(CudaTransfers, "_enqueue", enqueue_late)


CASES = [
    NO_QUARANTINE,
    Case(
        mutant=commit_before_acknowledgement,
        workload=Workload(
            seed=0, settings=BASE_SETTINGS, storage=None, faults=LAZY_ACKNOWLEDGEMENTS
        ),
    ),
    Case(
        mutant=no_generation_check,
        world=end_leases_when_granted,
        workload=replace(CROWDED, has_sound_leases=False),
    ),
    Case(mutant=early_lease_end, workload=CROWDED),
    Case(mutant=no_stream_waits, workload=CROWDED),
    Case(
        mutant=early_acknowledgement,
        world=slow_copies,
        workload=replace(CROWDED, faults=Faults(copy_s=0.005, link_delay_s=0.0002, report_s=0.0)),
    ),
]


def first_failing_seed(case: Case) -> int | None:
    """The first of `MAX_SEEDS` seeds with which a wrong page, answer or figure shows."""
    for seed in range(MAX_SEEDS):
        try:
            run_on_device(replace(case.workload, seed=seed), "cuda")
        except (AssertionError, AccountingError, KeyError):
            return seed
    return None


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found_on_a_gpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.world(monkeypatch)
    with monkeypatch.context() as mutated:
        case.mutant(mutated)
        seed = first_failing_seed(case)
    assert seed is not None, f"{MAX_SEEDS} seeds did not find {case.mutant.__name__}"
    run_on_device(replace(case.workload, seed=seed), "cuda")
