"""Where further samples of a prompt go on whose first one was split between two engines."""

import pytest

from raydix.ids import AskingId, NodeId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.routing.policies import SoonestNode
from raydix.runtime.routing.router import Router
from tests.runtime.routing.told import PAGE_SIZE, decodes, prefills

FIRST, THEN = NodeId(0), NodeId(1)


def request(asking: int, name: str, sample_of: str | None = None) -> SubmitRequest:
    return SubmitRequest(
        asking=AskingId(asking),
        request_id=RequestId(name),
        token_ids=int32_array(range(100 * PAGE_SIZE)),
        sampling=DeviceSampling(seed=0),
        max_tokens=8,
        sample_of=None if sample_of is None else RequestId(sample_of),
    )


@pytest.mark.parametrize(("node", "is_split"), [(FIRST, True), (THEN, False)])
def test_a_sample_goes_on_where_the_first_does_unless_it_begins_there(
    node: NodeId, is_split: bool
) -> None:
    router = Router(SoonestNode())
    for told in (prefills(FIRST), decodes(THEN, num_decoding=20)):
        router.find(told.node, f"n{told.node}", 0.0)
        news = EngineNews(is_anew=True, is_whole=True, events=(), report=told.report)
        router.hear(told.node, news, 0.0)
    sending = router.send(request(1, "first"), {FIRST, THEN}, 0.0)
    assert (sending.node, sending.message.goes_on_elsewhere) == (FIRST, True)

    sample = router.joins(node, request(2, "sample", sample_of="first"))

    assert sample.goes_on_elsewhere == is_split
