"""What a service's table takes from the figures of an engine."""

from typing import Any

from raydix.runtime.actors.service.rows import load_row

STATS: dict[str, Any] = {
    "scheduler": {
        "prompt_wait_s": 0.25,
        "num_requests_waiting": 3,
        "num_requests_loading": 1,
        "num_requests_running": 7,
        "prompt_tokens": 160,
        "prompt_tokens_l1": 64,
        "prompt_tokens_peer": 32,
        "prompt_tokens_computed:not_found": 60,
        "prompt_tokens_computed:last_token": 4,
    },
    "host": {
        "peers": 2,
        "peer_reads_ok": 5,
        "peer_reads_missing": 2,
        "peer_reads_cancelled": 8,
        "peer_reads_timed_out": 1,
        "peer_reads_bad_checksum": 1,
    },
    "restarts": {"gpu0": 1, "scheduler": 2},
}


def test_tokens_are_added_up_by_tier_and_what_was_computed_for_any_reason() -> None:
    tokens = {"l1": 64, "l2": 0, "peer": 32, "l3": 0, "computed": 64}
    assert load_row(STATS)["prompt_tokens_by_tier"] == tokens


def test_what_the_other_node_has_dropped_or_nobody_waits_for_is_no_failed_pull() -> None:
    row = load_row(STATS)
    assert (row["pulled_pages"], row["failed_pulls"], row["peers"]) == (5, 2, 2)


def test_requests_wait_and_restarts_are_told() -> None:
    row = load_row(STATS)
    assert (row["waiting"], row["loading"], row["running"]) == (3, 1, 7)
    assert (row["prompt_wait_s"], row["restarts"]) == (0.25, 3)


def test_an_engine_that_says_nothing_is_unknown_and_not_idle() -> None:
    assert set(load_row(None).values()) == {None}


def test_an_actor_that_is_being_restarted_is_unknown_and_the_others_are_told() -> None:
    row = load_row({**STATS, "scheduler": None})
    assert row["waiting"] is None
    assert row["prompt_tokens_by_tier"] is None
    assert (row["pulled_pages"], row["restarts"]) == (5, 3)
