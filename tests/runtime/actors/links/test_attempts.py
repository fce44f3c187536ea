"""How often and for how long an address is dialled."""

import pytest

from raydix.runtime.actors.links.attempts import FIRST_ATTEMPT_S, Attempts
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S


def attempts_of(timeout_s: float, took_s: float) -> tuple[list[float], list[float], float]:
    """The bounds, the pauses and the end, if each attempt fails after `took_s` or at its bound."""
    now_s, bounds, pauses = 100.0, [], []
    attempts = Attempts(timeout_s, now_s)
    while True:
        bounds.append(attempts.bound_s(now_s))
        now_s += min(took_s, bounds[-1])
        pause_s = attempts.fail(now_s)
        if pause_s is None:
            return bounds, pauses, now_s - 100.0
        pauses.append(pause_s)
        now_s += pause_s


def test_pauses_grow_and_all_attempts_end_with_the_time_if_each_is_refused() -> None:
    bounds, pauses, end_s = attempts_of(3.0, took_s=0.0)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert sum(pauses) == pytest.approx(3.0)
    assert len(bounds) == len(pauses) + 1 < 20
    assert end_s == pytest.approx(3.0)


@pytest.mark.parametrize("timeout_s", [0.0, 0.5, 4.0, 10.0, 12.0])
def test_a_host_that_answers_nothing_costs_the_time_that_was_given_or_one_attempt(
    timeout_s: float,
) -> None:
    bounds, _, end_s = attempts_of(timeout_s, took_s=1e9)
    assert max(bounds) <= HANDSHAKE_S
    assert bounds[0] >= FIRST_ATTEMPT_S
    assert end_s == pytest.approx(max(timeout_s, FIRST_ATTEMPT_S), abs=0.11)


def test_an_address_is_dialled_once_if_there_is_no_time() -> None:
    assert attempts_of(0.0, took_s=0.0) == ([FIRST_ATTEMPT_S], [], 0.0)


def test_what_is_raised_says_how_long_it_took_and_whether_anybody_answered() -> None:
    attempts = Attempts(0.5, now_s=100.0)
    refused = attempts.end("tcp:a:1", ConnectionRefusedError(111, "Connection refused"), 100.52)
    assert str(refused) == ("nobody listens at tcp:a:1 after 0.5 s: [Errno 111] Connection refused")
    silent = attempts.end("tcp:a:1", TimeoutError(), 103.0)
    assert str(silent).startswith("nobody answers at tcp:a:1 after 3.0 s")
