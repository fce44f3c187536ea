"""The breaker alone."""

from raydix.runtime.cache.host.circuit_breaker import BreakerState, CircuitBreaker


def open_breaker() -> CircuitBreaker:
    breaker = CircuitBreaker(2, 1.0, 10.0)
    breaker.trip(0.0)
    return breaker


def answer_probe(breaker: CircuitBreaker) -> float:
    """The next probe succeeds; when that is."""
    now_s = breaker.retry_at_s
    assert now_s is not None
    breaker.start()
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    return now_s


def test_backend_that_answers_nothing_but_probes_is_used_less_and_less() -> None:
    breaker = open_breaker()
    backoffs = []
    for _ in range(6):
        now_s = answer_probe(breaker)
        breaker.trip(now_s)
        assert breaker.retry_at_s is not None
        backoffs.append(breaker.retry_at_s - now_s)
    assert backoffs == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_use_that_succeeds_beside_the_probe_is_trusted() -> None:
    breaker = open_breaker()
    breaker.trip(answer_probe(breaker))
    now_s = answer_probe(breaker)
    breaker.succeed()
    breaker.trip(now_s)
    assert breaker.retry_at_s == now_s + 1.0


def test_late_success_closes_it_and_a_sign_of_life_brings_the_probe_forward() -> None:
    breaker = open_breaker()
    breaker.hasten(0.25)
    assert breaker.retry_at_s == 0.25
    breaker.close()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.off_since_s is None
