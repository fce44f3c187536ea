"""Mutants of recordings: every random workload is recorded, and some find each of them."""

from typing import Any

import pytest

from raydix.runtime.scheduler.life import recorder
from raydix.runtime.scheduler.life.recorder import Recorder
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.request import RequestState
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import Workload

ANY = Workload(seed=0, retention_fraction=0.6)


def answers_are_of_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hashes of an answer are those of the one that ended before."""
    answer_hashes = Recorder._answer_hashes
    former: list[Chain] = []

    def hashes_of_former(self: Recorder, running: Any, chain: Chain) -> bytes:
        former.append(chain)
        return answer_hashes(self, running, former[-2:][0])

    monkeypatch.setattr(Recorder, "_answer_hashes", hashes_of_former)


def last_tokens_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of an answer counts as if it had been computed."""

    def with_last(self: Recorder, running: Any, chain: Chain) -> bytes:
        pages = running.block_pages
        stop = chain.num_tokens // self._page_size // pages
        ends = recorder._ends(running, chain, chain.num_prompt_pages // pages, stop)
        return b"".join(running.hash_of(b"block", end) for end in ends)

    monkeypatch.setattr(Recorder, "_answer_hashes", with_last)


def pauses_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request counts as answered when it came."""
    note_end = Recorder.note_end

    def note_at_once(self: Recorder, request: RequestState) -> None:
        now_s, self._now_s = self._now_s, request.arrival_s
        note_end(self, request)
        self._now_s = now_s

    monkeypatch.setattr(Recorder, "note_end", note_at_once)


def requests_are_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is recorded once more as it ends."""
    note_end = Recorder.note_end

    def note_twice(self: Recorder, request: RequestState) -> None:
        note_end(self, request)
        note_end(self, request)

    monkeypatch.setattr(Recorder, "note_end", note_twice)


def sessions_of_tenants_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of one name count as one, whosever they are."""
    session = recorder._session
    monkeypatch.setattr(
        recorder, "_session", lambda running, name, cache_salt: session(running, name, None)
    )


def tails_are_told_apart_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest behind a prompt's whole blocks is hashed without what comes before it."""
    hash_of = recorder._Running.hash_of

    def without_chain(self: Any, kind: bytes, content: bytes) -> bytes:
        return hash_of(self, kind, content[-4:] if kind == b"tail" else content)

    monkeypatch.setattr(recorder._Running, "hash_of", without_chain)


CASES = [
    answers_are_of_another_request,
    last_tokens_count,
    pauses_are_lost,
    requests_are_told_twice,
    sessions_of_tenants_are_one,
    tails_are_told_apart_by_nothing,
]


@pytest.mark.part
@pytest.mark.parametrize("mutant", CASES, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find(Case(mutant=mutant, workload=ANY), monkeypatch)
