"""What another node may say, and what costs it its link."""

import pytest

from raydix.ids import BatchId
from raydix.runtime.actors.pulls.judging import (
    MAX_OPEN_PULLS,
    MAX_PULLED_PAGES,
    PeerJudge,
    ReaderJudge,
)
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    CopiesDrained,
    ObjectsDone,
    ObjectStatus,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages, TellKeys

KEY = bytes(32)


def pull(batch: int, keys: bytes = KEY, group: int = 0) -> PullPages:
    return PullPages(batch_id=BatchId(batch), keys=keys, group=group)


def ask(batch: int, keys: bytes = KEY, group: int = 0) -> AskExists:
    return AskExists(batch_id=BatchId(batch), keys=keys, group=group)


def test_a_reader_may_ask_pull_cancel_and_hear_all_keys_again() -> None:
    judge = ReaderJudge(num_groups=2)
    said = [ask(0), pull(1), pull(5, group=1), CancelBatch(batch_id=BatchId(1)), TellKeys()]
    assert [judge.check(message, 0) for message in said] == said


@pytest.mark.parametrize(
    "message",
    [
        pull(7),
        ask(7),
        pull(3),
        pull(8, group=2),
        pull(8, group=-1),
        ask(8, group=2),
        pull(8, keys=KEY[1:]),
        pull(8, keys=b""),
        ask(8, keys=KEY + b"x"),
        pull(8, keys=KEY * (MAX_PULLED_PAGES + 1)),
        CopiesDrained(),
        ObjectsDone(batch_id=BatchId(7), statuses=b"\0"),
    ],
    ids=lambda message: f"{type(message).__name__}",
)
def test_a_reader_that_says_anything_else_is_refused(message: object) -> None:
    judge = ReaderJudge(num_groups=2)
    judge.check(pull(7), 0)

    with pytest.raises(PeerMisbehaves):
        judge.check(message, 0)


def test_a_reader_that_waits_for_too_many_batches_is_refused() -> None:
    judge = ReaderJudge(num_groups=1)
    judge.check(pull(1), MAX_OPEN_PULLS - 1)

    with pytest.raises(PeerMisbehaves, match="waits for 64 batches"):
        judge.check(pull(2), MAX_OPEN_PULLS)


def test_a_reader_that_names_a_page_twice_in_one_pull_is_refused() -> None:
    judge = ReaderJudge(num_groups=1)
    other = b"x" * len(KEY)
    judge.check(pull(1, keys=KEY + other), 0)
    judge.check(pull(2, keys=KEY), 0)

    with pytest.raises(PeerMisbehaves, match="3 pages, of which 2 differ"):
        judge.check(pull(3, keys=KEY + other + KEY), 0)


def test_a_peer_may_answer_what_it_was_asked_and_tell_its_keys() -> None:
    judge = PeerJudge(num_groups=2)
    judge.ask(ask(3, keys=KEY * 2))
    told = MirrorUpdate(ready=bytes(32), dropped=bytes(16), group=1)
    answer = ObjectsDone(batch_id=BatchId(3), statuses=bytes([0, ObjectStatus.MISSING]))

    assert judge.check(told) == told
    assert judge.check(answer) == answer


@pytest.mark.parametrize(
    "message",
    [
        ObjectsDone(batch_id=BatchId(4), statuses=b"\0\0"),
        ObjectsDone(batch_id=BatchId(3), statuses=b"\0"),
        ObjectsDone(batch_id=BatchId(3), statuses=b"\0\xee"),
        MirrorUpdate(ready=bytes(15)),
        MirrorUpdate(dropped=bytes(17)),
        MirrorUpdate(group=2),
        TellKeys(),
    ],
)
def test_a_peer_that_says_anything_else_is_refused(message: object) -> None:
    judge = PeerJudge(num_groups=2)
    judge.ask(ask(3, keys=KEY * 2))

    with pytest.raises(PeerMisbehaves):
        judge.check(message)


def test_a_peer_answers_once() -> None:
    judge = PeerJudge(num_groups=1)
    judge.ask(ask(3))
    answer = ObjectsDone(batch_id=BatchId(3), statuses=b"\0")
    judge.check(answer)

    with pytest.raises(PeerMisbehaves, match="no answer"):
        judge.check(answer)
