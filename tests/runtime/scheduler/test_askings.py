"""An answer names one asking: a request id used again is never taken for its earlier use."""

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    StopRequest,
    SubmitRequest,
)
from raydix.runtime.messages.plan import DeviceSampling, TransfersDone
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

OTHER = ClientId("other")
A = RequestId("a")


class Asker:
    """Clients that number their askings themselves, and what each of them hears."""

    def __init__(self) -> None:
        self.driver = CoreDriver(has_host_memory=True)
        self.heard: list[tuple[ClientId, RequestDelta]] = []

    def say(
        self,
        message: SubmitRequest | PrefetchPrompt | AbortRequest | StopRequest,
        client: ClientId = CLIENT,
    ) -> None:
        effects = self.driver.core.handle(
            events.ClientMessage(client_id=client, message=message), self.driver.now_s
        )
        self.heard += [
            (each.client_id, each.delta) for each in effects if isinstance(each, events.SendClient)
        ]

    def submit(self, asking: int, client: ClientId = CLIENT) -> None:
        message = SubmitRequest(
            asking=AskingId(asking),
            request_id=A,
            token_ids=int32_array([1, 2, 3]),
            sampling=DeviceSampling(seed=0),
            max_tokens=4,
        )
        self.say(message, client)

    @property
    def endings(self) -> list[tuple[ClientId, int, FinishReason | FailureKind]]:
        """Client, asking and how it ended, in order."""
        ends = [
            (client, delta.asking, delta.finished if delta.failure is None else delta.failure.kind)
            for client, delta in self.heard
        ]
        return [(client, asking, end) for client, asking, end in ends if end is not None]

    @property
    def num_live(self) -> float:
        stats = self.driver.core.stats()
        return stats["num_requests_running"] + stats["num_requests_waiting"]


def test_an_id_that_is_used_again_answers_under_the_number_of_each_use() -> None:
    asker = Asker()
    asker.submit(1)
    asker.say(AbortRequest(asking=AskingId(1), request_id=A))
    asker.submit(2)
    asker.say(StopRequest(asking=AskingId(2), request_id=A))
    assert asker.endings == [(CLIENT, 1, FinishReason.ABORT), (CLIENT, 2, FinishReason.STOP)]


def test_a_late_stop_or_abort_of_an_earlier_use_does_not_end_the_later_one() -> None:
    asker = Asker()
    asker.submit(1)
    asker.say(AbortRequest(asking=AskingId(1), request_id=A))
    asker.submit(2)
    asker.heard.clear()
    asker.say(StopRequest(asking=AskingId(1), request_id=A))
    asker.say(AbortRequest(asking=AskingId(1), request_id=A))
    assert asker.heard == []
    assert asker.num_live == 1


def test_a_late_abort_of_an_earlier_use_does_not_end_a_prefetch() -> None:
    asker = Asker()
    prompt = int32_array(range(17))
    asker.say(PrefetchPrompt(asking=AskingId(1), request_id=A, token_ids=prompt))
    asker.say(AbortRequest(asking=AskingId(1), request_id=A))
    asker.say(PrefetchPrompt(asking=AskingId(2), request_id=A, token_ids=prompt))
    asker.say(AbortRequest(asking=AskingId(1), request_id=A))
    assert asker.endings == [(CLIENT, 1, FinishReason.ABORT)]
    asker.say(AbortRequest(asking=AskingId(2), request_id=A))
    assert asker.endings[1:] == [(CLIENT, 2, FinishReason.ABORT)]


def test_an_id_in_use_is_refused_and_the_refusal_names_the_second_asking() -> None:
    asker = Asker()
    asker.submit(1)
    asker.submit(2)
    asker.submit(1, OTHER)
    refused = FailureKind.BAD_REQUEST
    assert asker.endings == [(CLIENT, 2, refused), (OTHER, 1, refused)]
    assert asker.num_live == 1


def test_a_client_cannot_end_what_another_one_asked_under_the_same_number() -> None:
    asker = Asker()
    asker.submit(1)
    asker.say(AbortRequest(asking=AskingId(1), request_id=A), OTHER)
    assert asker.heard == []
    assert asker.num_live == 1


def test_a_client_cannot_end_a_prefetch_of_another_one_under_the_same_number() -> None:
    asker = Asker()
    hint = PrefetchPrompt(asking=AskingId(1), request_id=A, token_ids=int32_array(range(17)))
    asker.say(hint)
    asker.say(hint, OTHER)
    asker.say(AbortRequest(asking=AskingId(1), request_id=A), OTHER)
    assert asker.endings == [(OTHER, 1, FailureKind.BAD_REQUEST)]


def test_a_client_that_connects_again_may_use_its_ids_and_numbers_again() -> None:
    asker = Asker()
    asker.submit(1)
    asker.driver.send(events.ClientGone(client_id=CLIENT))
    asker.submit(1, OTHER)
    asker.say(AbortRequest(asking=AskingId(1), request_id=A), OTHER)
    assert asker.endings == [(OTHER, 1, FinishReason.ABORT)]


def test_a_load_of_an_earlier_use_does_not_count_as_the_load_of_the_later_one() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    prompt = list(range(17))
    driver.fill_l2(prompt)
    loads: list[int] = []
    for _ in range(2):
        driver.submit(prompt, name="a", max_tokens=4)
        driver.host_turn()
        loads += driver.plans[0][0].loads.transfer_ids.tolist()[:1]
        while driver.plans[0]:
            driver.step()
        if len(loads) == 1:
            driver.abort("a")
            del driver.answers["a"]

    first, second = loads
    assert first != second
    driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array((first,))))
    assert "a" not in driver.answers, "its own load is still under way"
    driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array((second,))))
    assert driver.answers["a"].tokens
