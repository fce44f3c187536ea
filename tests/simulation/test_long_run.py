"""The long run in short: one cluster's life with faults of every kind."""

from tests.simulation.long_run import describe, make_workload
from tests.simulation.workload import run_workload


def test_cluster_survives_faults_of_every_kind_with_every_answer_exact() -> None:
    workload = make_workload(400, seed=1)

    cluster = run_workload(workload)

    figures = describe(cluster)
    assert figures["leases_at_the_end"] == 0
    assert figures["requests"] >= workload.num_requests
    assert figures["names"] < figures["requests"] / 4, "names come again"
    assert cluster.num_faults.keys() >= {
        "GPU actor killed",
        "GPU link broken",
        "HostMemory killed",
        "HostMemory link broken",
        "HostMemory silent",
        "Scheduler killed",
        "client link broken",
        "client lost",
        "client rested",
        "storage killed",
        "storage link broken",
        "storage switched",
    }
    storage = figures["storage"]
    assert storage["l3_reads_ok"] > 0
    assert storage["l3_reads_bad_checksum"] > 0
