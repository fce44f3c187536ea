import numpy as np

from raydix.ids import RequestId
from raydix.runtime.actors.outbox import BUSY_BYTES, ClientOutbox
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FinishReason, RequestDelta, TokenFrame
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role


class RecordingLink:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.hello = Hello(secret=b"", role=Role.CLIENT, name="c", incarnation=0, pid=1)
        self.buffered_bytes = 0
        self.is_closed = False
        self.frames: list[TokenFrame] = []

    def send(self, message: Message) -> None:
        assert isinstance(message, TokenFrame)
        self.frames.append(message)

    async def receive(self) -> Message:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


def delta(request: str, *tokens: int, finished: FinishReason | None = None) -> RequestDelta:
    return RequestDelta(request_id=RequestId(request), token_ids=int32_array(tokens), finished=finished)


def test_one_turn_makes_one_frame_with_all_requests() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    outbox.add(delta("a", 1))
    outbox.add(delta("b", 2))
    assert outbox.flush()
    assert [[d.request_id for d in frame.deltas] for frame in link.frames] == [["a", "b"]]
    assert outbox.flush()
    assert len(link.frames) == 1


def test_news_for_a_slow_client_merge_without_loss_or_repetition() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1
    first = RequestDelta(
        request_id=RequestId("a"), token_ids=int32_array([1, 2]), cached_tokens_by_source={"l1": 4}, queued_s=0.5
    )
    outbox.add(first)
    assert not outbox.flush()
    outbox.add(delta("a", 3, finished=FinishReason.STOP))
    link.buffered_bytes = 0
    assert outbox.flush()
    (merged,) = link.frames[0].deltas
    assert np.array_equal(merged.token_ids, [1, 2, 3])
    assert merged.cached_tokens_by_source == {"l1": 4}
    assert merged.queued_s == 0.5
    assert merged.finished is FinishReason.STOP
