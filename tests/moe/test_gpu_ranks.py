"""How the results of ranks that are processes are waited for."""

from multiprocessing import Pipe
from multiprocessing.connection import Connection

from tests.moe.gpu_ranks import Failure, results_of


def pipes() -> tuple[list[Connection], list[Connection]]:
    """The pipes of two ranks: where results arrive, and where ranks put them."""
    both = [Pipe() for _ in range(2)]
    return [ours for ours, _ in both], [theirs for _, theirs in both]


def test_results_are_in_the_order_of_ranks_and_none_of_one_that_was_killed() -> None:
    ours, theirs = pipes()
    theirs[1].send("second")
    theirs[0].close()

    assert results_of(ours, wait_s=60, peers_wait_s=60) == [None, "second"]


def test_a_failure_is_said_though_the_rank_before_it_never_ends() -> None:
    ours, theirs = pipes()
    theirs[1].send(Failure("wrong sums"))

    found = results_of(ours, wait_s=3600, peers_wait_s=0)

    assert found == [Failure("rank 0 has not ended"), Failure("wrong sums")]


def test_ranks_that_never_end_are_named() -> None:
    ours, _theirs = pipes()

    found = results_of(ours, wait_s=0, peers_wait_s=0)

    assert found == [Failure("rank 0 has not ended"), Failure("rank 1 has not ended")]
