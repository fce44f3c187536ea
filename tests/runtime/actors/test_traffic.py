import logging

from raydix.runtime.actors.traffic import Traffic, describe_traffic

IDLE = {"num_requests_running": 0, "num_requests_waiting": 0, "generation_tokens": 70}
BUSY = {
    "num_requests_running": 3,
    "num_requests_waiting": 2,
    "generation_tokens": 5190,
    "prompt_tokens": 9999,
    "prompt_tokens_l1": 4000,
    "prompt_tokens_l3": 1000,
    "prompt_tokens_computed:not_found": 4500,
    "prompt_tokens_computed:timed_out": 500,
}


def test_a_line_says_requests_tokens_per_second_and_hits_by_tier() -> None:
    assert describe_traffic(IDLE, BUSY, 10.0) == (
        "3 running, 2 waiting; prompt 1,000.0 tokens/s, generated 512.0 tokens/s; "
        "40.0% from L1, 0.0% from L2, 10.0% from L3, 50.0% computed"
    )


def test_only_what_happened_since_the_last_look_counts() -> None:
    later = {**BUSY, "prompt_tokens_l1": 4100, "prompt_tokens_l2": 300, "generation_tokens": 5200}
    assert describe_traffic(BUSY, later, 4.0) == (
        "3 running, 2 waiting; prompt 100.0 tokens/s, generated 2.5 tokens/s; "
        "25.0% from L1, 75.0% from L2, 0.0% from L3, 0.0% computed"
    )


def test_pages_of_other_nodes_are_told_once_there_were_some() -> None:
    pulled = {**BUSY, "prompt_tokens_peer": 100}
    told = describe_traffic(BUSY, pulled, 10.0)
    assert told is not None
    assert "0.0% from L2, 100.0% from other nodes, 0.0% from L3, 0.0% computed" in told


def test_without_a_new_prompt_no_hits_are_told() -> None:
    assert describe_traffic(BUSY, BUSY, 10.0) == (
        "3 running, 2 waiting; prompt 0.0 tokens/s, generated 0.0 tokens/s"
    )


def test_an_idle_engine_is_silent_once_the_rest_is_told() -> None:
    ended = {**BUSY, "num_requests_running": 0, "num_requests_waiting": 0}
    traffic = Traffic()
    assert traffic.tell(IDLE, 100.0) is None
    assert traffic.tell(IDLE, 110.0) is None
    told = traffic.tell(ended, 120.0)
    assert told is not None
    level, text = told
    assert level == logging.INFO
    assert text.startswith("0 running, 0 waiting; prompt 1,000.0 tokens/s")
    assert traffic.tell(ended, 130.0) is None
