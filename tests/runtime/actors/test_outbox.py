import numpy as np
import pytest

from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import CLIENT_MAX_BUFFERED_BYTES
from raydix.runtime.actors.outbox import BUSY_BYTES, FRAME_BYTES, ClientOutbox
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FinishReason, RequestDelta, TokenFrame
from raydix.runtime.messages.codec import Message, encode
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs, prompt_logprob_bytes

TOP_20 = TokenLogprobs(
    token_ids=tuple(range(10**5, 10**5 + 21)),
    logprobs=tuple(-1.23 - i for i in range(21)),
    ranks=tuple(range(1, 22)),
)


class RecordingLink:
    """A link that keeps what is sent, encoded or not, and counts as busy when told."""

    def __init__(self) -> None:
        self.hello = Hello(role=Role.CLIENT, name="c", incarnation=0, pid=1)
        self.buffered_bytes = 0
        self.is_closed = False
        self.frames: list[TokenFrame] = []

    def send(self, message: Message) -> None:
        assert isinstance(message, TokenFrame)
        encode(message)
        self.frames.append(message)

    async def receive(self) -> Message:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


def delta(asking: int, *tokens: int, finished: FinishReason | None = None) -> RequestDelta:
    return RequestDelta(
        asking=AskingId(asking),
        request_id=RequestId("r"),
        token_ids=int32_array(tokens),
        finished=finished,
    )


def test_one_turn_makes_one_frame_with_all_requests() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    outbox.add(delta(1, 1))
    outbox.add(delta(2, 2))
    assert outbox.flush()
    assert [[d.asking for d in frame.deltas] for frame in link.frames] == [[1, 2]]
    assert outbox.flush()
    assert len(link.frames) == 1


def test_news_for_a_slow_client_merge_without_loss_or_repetition() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1

    first = RequestDelta(
        asking=AskingId(1),
        request_id=RequestId("a"),
        token_ids=int32_array([1, 2]),
        cached_tokens_by_source={"l1": 4},
        queued_s=0.5,
    )

    outbox.add(first)
    assert not outbox.flush()

    outbox.add(delta(1, 3, finished=FinishReason.STOP))
    link.buffered_bytes = 0
    assert outbox.flush()

    (merged,) = link.frames[0].deltas
    assert np.array_equal(merged.token_ids, [1, 2, 3])
    assert merged.cached_tokens_by_source == {"l1": 4}
    assert merged.queued_s == 0.5
    assert merged.finished is FinishReason.STOP


def test_two_uses_of_one_request_id_never_merge() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    outbox.add(delta(1, 7, finished=FinishReason.ABORT))
    outbox.add(delta(2, 8))
    outbox.flush()
    (frame,) = link.frames
    assert [(d.asking, d.token_ids.tolist(), d.finished) for d in frame.deltas] == [
        (1, [7], FinishReason.ABORT),
        (2, [8], None),
    ]


def test_runs_of_a_prompt_are_merged_in_order_and_counted() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1
    runs = [prompt_run(start, num_tokens=2048) for start in (1, 2049, 4097)]
    for run in runs:
        outbox.add(
            RequestDelta(asking=AskingId(1), request_id=RequestId("r"), prompt_logprobs=(run,))
        )
    outbox.add(delta(1, 7))
    assert not outbox.flush()

    link.buffered_bytes = 0
    assert outbox.flush()
    [frame] = link.frames
    [merged] = frame.deltas
    assert [run.start for run in merged.prompt_logprobs] == [1, 2049, 4097]
    assert merged.token_ids.tolist() == [7]
    num_bytes = len(encode(frame))
    assert 0.9 * num_bytes < 3 * prompt_logprob_bytes(2048, 20) < 1.1 * num_bytes

    link.buffered_bytes = BUSY_BYTES + 1
    while not link.is_closed:
        outbox.add(
            RequestDelta(asking=AskingId(2), request_id=RequestId("s"), prompt_logprobs=(runs[0],))
        )
        outbox.flush()
    assert outbox.was_too_slow


def prompt_run(start: int, num_tokens: int) -> PromptLogprobs:
    """Logprobs of a run of a prompt, of 20 tokens each."""
    column, top = int32_array(range(num_tokens)), int32_array(range(20 * num_tokens))
    return PromptLogprobs(
        start=start,
        logprob_bits=column,
        ranks=column,
        num_top=20,
        top_ids=top,
        top_logprob_bits=top,
    )


def test_a_client_that_owes_too_much_counts_as_gone_and_nothing_is_kept_for_it() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1

    num_turns = 0
    while not link.is_closed:
        outbox.add(
            RequestDelta(
                asking=AskingId(num_turns), request_id=RequestId("r"), logprobs=(TOP_20,) * 100
            )
        )
        outbox.flush()
        num_turns += 1
        assert num_turns < 1000

    owed_bytes = sum(len(encode(TokenFrame(deltas=(delta(i),)))) for i in range(num_turns))
    owed_bytes += num_turns * 100 * 21 * (5 + 9 + 1)
    assert 0.5 * CLIENT_MAX_BUFFERED_BYTES < owed_bytes <= CLIENT_MAX_BUFFERED_BYTES
    assert outbox.was_too_slow

    outbox.add(delta(1, 1))
    assert outbox.flush()
    assert not link.frames


def test_a_turn_with_much_news_goes_out_in_frames_of_bounded_size() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    for asking in range(64):
        outbox.add(
            RequestDelta(
                asking=AskingId(asking), request_id=RequestId("r"), logprobs=(TOP_20,) * 200
            )
        )
    assert outbox.flush()
    assert len(link.frames) > 1
    assert all(len(encode(frame)) <= FRAME_BYTES for frame in link.frames)
    assert [d.asking for frame in link.frames for d in frame.deltas] == list(range(64))
    assert not outbox.was_too_slow


def test_news_that_cannot_travel_costs_its_client_alone() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    outbox.add(delta(2**64, 1))
    assert outbox.flush()
    assert link.is_closed
    assert not outbox.was_too_slow


def tokens(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Askings and their tokens, as the Scheduler's core gives them."""
    return np.array([asking for asking, _ in pairs], dtype=np.int64), int32_array(
        token for _, token in pairs
    )


def heard(link: RecordingLink, asking: int) -> list[int]:
    """What a client makes of the frames, for one asking."""
    found = []
    for frame in link.frames:
        found += [
            token
            for each, token in zip(frame.askings, frame.token_ids.tolist(), strict=True)
            if each == asking
        ]
        for each in frame.deltas:
            found += each.token_ids.tolist() if each.asking == asking else []
    return found


def test_single_tokens_travel_in_columns() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    outbox.add_tokens(*tokens((1, 10), (2, 20)))
    outbox.add_tokens(*tokens((1, 11)))
    assert outbox.flush()
    (frame,) = link.frames
    assert (frame.askings, frame.token_ids.tolist(), frame.deltas) == ((1, 2, 1), [10, 20, 11], ())


@pytest.mark.parametrize("is_slow", [False, True])
def test_order_of_tokens_and_deltas_of_an_asking_is_kept(is_slow: bool) -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1 if is_slow else 0

    outbox.add_tokens(*tokens((1, 1), (2, 1)))
    outbox.add(delta(1, 2))
    outbox.add_tokens(*tokens((1, 3), (2, 2)))
    outbox.flush()

    outbox.add_tokens(*tokens((1, 4), (2, 3)))
    outbox.add(delta(2, 4, finished=FinishReason.LENGTH))
    link.buffered_bytes = 0
    assert outbox.flush()

    assert heard(link, 1) == [1, 2, 3, 4]
    assert heard(link, 2) == [1, 2, 3, 4]
    assert link.frames[-1].deltas[-1].finished is FinishReason.LENGTH


def test_columns_of_a_client_that_does_not_read_count_and_are_bounded() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    link.buffered_bytes = BUSY_BYTES + 1
    askings = np.arange(10_000, dtype=np.int64)
    num_turns = 0
    while not link.is_closed:
        outbox.add_tokens(askings, int32_array(askings))
        outbox.flush()
        num_turns += 1
        assert num_turns * len(askings) <= CLIENT_MAX_BUFFERED_BYTES
    assert outbox.was_too_slow


def test_columns_are_cut_into_frames() -> None:
    link = RecordingLink()
    outbox = ClientOutbox(link)
    askings = np.arange(200_000, dtype=np.int64)
    outbox.add_tokens(askings, int32_array(askings))
    outbox.add(delta(3, 5))
    assert outbox.flush()
    assert [
        token for frame in link.frames for token in frame.token_ids.tolist()
    ] == askings.tolist()
    assert all(len(encode(frame)) <= FRAME_BYTES for frame in link.frames)
    assert [len(frame.deltas) for frame in link.frames] == [0] * (len(link.frames) - 1) + [1]
