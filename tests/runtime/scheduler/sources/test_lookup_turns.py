"""The next lookup goes in its turn, and none waits for claims that end only after it."""

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from raydix.runtime.scheduler.sources.lookups import Lookups


def request(name: str) -> RequestState:
    submit = SubmitRequest(
        asking=AskingId(0),
        request_id=RequestId(name),
        token_ids=int32_array((1,)),
        sampling=DeviceSampling(seed=0),
        max_tokens=1,
    )
    return RequestState(
        submit, ClientId("client"), serial=ord(name), max_tokens=1, page_size=4, now_s=0.0
    )


def pages(text: str) -> list[bytes]:
    """A page for each letter."""
    return [letter.encode() for letter in text]


def key_of(asker: RequestState) -> OrderKey:
    return OrderKey(0, 0, 0, 0.0, asker.serial)


def test_first_goes_when_all_who_claim_pages_wait_for_their_turn_behind_it() -> None:
    lookups = Lookups()
    lookups.set_room(4)
    a, b = request("a"), request("b")
    for asker, wanted in ((a, pages("uvx")), (b, pages("y"))):
        lookups.enqueue(asker, wanted, key_of(asker))
        assert lookups.next_to_send() is asker

    # Both found no room: b would keep its page until its own turn comes, and that is behind a.
    lookups.narrow_claim(a, pages("u"))
    assert lookups.enqueue_again(a, pages("uvwx"), key_of(a))
    assert lookups.next_to_send() is None, "b may have its answer yet, and load its page"
    assert not lookups.enqueue_again(b, pages("yz"), key_of(b)), "a waits, too: it would be in vain"
    lookups.end_claim(b)
    assert lookups.next_to_send() is a


def test_a_claim_whose_pages_others_claim_too_has_ended_when_it_ends() -> None:
    lookups = Lookups()
    lookups.set_room(2)
    a, b = request("a"), request("b")
    for asker in (a, b):
        lookups.enqueue(asker, pages("uv"), key_of(asker))
        assert lookups.next_to_send() is asker

    assert lookups.enqueue_again(a, pages("uvw"), key_of(a))
    assert lookups.next_to_send() is None
    lookups.end_claim(b)

    assert lookups.next_to_send() is a
