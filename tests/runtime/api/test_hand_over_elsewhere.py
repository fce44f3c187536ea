"""A hand-over goes elsewhere than was foreseen, as that engine sleeps by then."""

from dataclasses import replace

from raydix.runtime.messages.client import FinishReason
from tests.runtime.api.fake_engine import delta
from tests.runtime.api.test_hand_over import DECODE, asked, begin, end_of, hand_over, told

__all__ = ["told"]


async def test_a_hand_over_to_an_engine_that_sleeps_by_then_is_counted_there_no_more(told):
    task = await begin(told)
    await told.tell("b", report=replace(DECODE, is_asleep=True))
    await hand_over(told)
    assert told.router._router._ingress._hand_overs.num_open == 0
    [_, rest] = asked(told.links["a"])
    assert rest.earlier_output.tolist() == [5]
    told.links["a"].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]
