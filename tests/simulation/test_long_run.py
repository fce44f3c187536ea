"""The long run in short: one cluster's life with faults of every kind."""

import pytest

from raydix.runtime.config.kv_layout import GroupKind
from tests.simulation.long_run import describe, make_workload
from tests.simulation.workload import run_workload


@pytest.mark.parametrize(
    ("ranks_per_lane", "lanes_per_group", "num_requests", "seed"),
    # In so short a run few requests find anything in L2: it takes seeds in which some do.
    [
        (1, 1, 200, 5),
        pytest.param(4, 1, 200, 7, marks=pytest.mark.part),
        pytest.param(1, 4, 200, 2, marks=pytest.mark.part),
    ],
)
def test_cluster_survives_faults_of_every_kind_with_every_answer_exact(
    ranks_per_lane: int, lanes_per_group: int, num_requests: int, seed: int
) -> None:
    workload = make_workload(
        num_requests, seed=seed, ranks_per_lane=ranks_per_lane, lanes_per_group=lanes_per_group
    )

    cluster = run_workload(workload)

    figures = describe(cluster)
    assert figures["leases_at_the_end"] == 0
    assert figures["requests"] >= workload.num_requests
    assert figures["names"] < figures["requests"] / 3, "names come again"
    assert cluster.num_faults.keys() >= {
        "GPU actor hung",
        "GPU actor killed",
        "GPU link broken",
        "HostMemory killed",
        "HostMemory link broken",
        "HostMemory silent",
        "Scheduler killed",
        "client link broken",
        "client lost",
        "client rested",
        "loads slowed",
        "storage killed",
        "storage slowed",
        "storage link broken",
        "storage switched",
    }
    assert figures["storage"]["l3_pages_written"] > 0
    assert figures["prompt_tokens_by_source"]["l2"] > 0
    assert (figures["steps_on_padding"] > 0) == (lanes_per_group > 1)
    assert (figures["experts"]["moves"] > 0) == (lanes_per_group > 1)


def test_layout_of_the_long_run_has_groups_of_all_kinds() -> None:
    settings = make_workload(10_000, seed=0, ranks_per_lane=4).settings

    assert {group.kind for group in settings.layout.groups} == set(GroupKind)
    assert settings.ranks_per_lane == 4
