"""Samples that are asked for anew go where the first one is by then, and are expected nowhere."""

from dataclasses import replace

from raydix.ids import RequestId
from raydix.runtime.api.request_options import RequestOptions
from tests.runtime.api.small_client import turns
from tests.runtime.api.test_hand_over import (
    DECODE,
    PREFILL,
    asked,
    begin,
    expected,
    taken_back,
)
from tests.runtime.api.test_line_router import Told


async def test_a_sample_that_joins_the_first_one_after_a_death_is_not_expected_besides():
    told = Told()
    await told.tell("a", is_anew=True, report=PREFILL)
    await told.tell("b", is_anew=True, report=DECODE)
    sample = await begin(told, "sample", options=RequestOptions(sample_of=RequestId("first")))
    [foretold] = expected(told.links["b"])
    # Others wait there by now, so that the first sample is computed where it goes on.
    await told.tell("a", report=replace(PREFILL, busy_s=100.0))
    first = await begin(told, "first")

    told.links["a"].break_off()
    await turns()

    assert [each.request_id for each in asked(told.links["b"])] == ["first", "sample"]
    assert taken_back(told.links["b"]) == [foretold.asking]
    for task in (first, sample):
        task.cancel()
    await told.client.close()
