"""Every request is answered, whatever befalls the nodes, and none is sent to one that is gone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.routing.policies import RoundRobin, RoutingPolicy, SessionHash, SoonestNode
from tests.runtime.routing.faulty_service import Fault, FaultyService

NAMES = ("n0", "n1", "n2")
_requests = st.lists(
    st.tuples(st.floats(0, 30), st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=60
)
_faults = st.lists(
    st.tuples(st.floats(0, 30), st.sampled_from(NAMES), st.sampled_from(Fault)), max_size=8
)


def request(session: int, num_blocks: int) -> TraceRequest:
    """A prompt of a session: the sessions' first two blocks are the same."""
    own = range(100 * session, 100 * session + num_blocks)
    blocks = (7001, 7002, *own)
    return TraceRequest(
        blocks=blocks,
        partial_block=None,
        num_tokens=len(blocks) * BLOCK_TOKENS + 1,
        num_answer_tokens=1,
        arrival_s=0.0,
        end_s=0.0,
        session=session,
        next_s=None,
    )


def played(
    policy: RoutingPolicy,
    requests: list[tuple[float, int, int]],
    faults: list[tuple[float, str, Fault]],
    *,
    news_s: float = 0.05,
) -> FaultyService:
    """A service after all has come that was to come."""
    clock = Clock()
    service = FaultyService(policy, NAMES, clock, news_s=news_s)
    for number, (arrival_s, session, num_blocks) in enumerate(requests):
        prompt = request(session, num_blocks)
        clock.after(arrival_s, lambda number=number, prompt=prompt: service.send(number, prompt))
    for at_s, name, fault in faults:
        clock.after(at_s, lambda name=name, fault=fault: service.befall(name, fault))
    clock.run()
    return service


@pytest.mark.parametrize("policy", [SoonestNode, SessionHash, RoundRobin])
@settings(max_examples=40, deadline=None)
@given(requests=_requests, faults=_faults, news_s=st.sampled_from([0.0, 0.05, 3.0]))
def test_every_request_is_answered(
    policy: type[RoutingPolicy],
    requests: list[tuple[float, int, int]],
    faults: list[tuple[float, str, Fault]],
    news_s: float,
) -> None:
    service = played(policy(), requests, faults, news_s=news_s)

    assert sorted(service.answered) == list(range(len(requests)))
    gone = service.gone
    assert all(at_s <= gone[node] for at_s, node in service.routes if node in gone)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.LIAR])
def test_few_are_sent_to_a_node_that_does_not_answer(fault: Fault) -> None:
    requests = [(1 + 0.2 * number, number, 4) for number in range(50)]

    service = played(SoonestNode(), requests, [(0.0, "n0", fault)])

    wait_for_it = [at_s for at_s, node in service.routes if node == 0]
    assert len(wait_for_it) <= 5
    assert len(service.answered) == 50
