"""What is told of a cluster's head that does not answer, and when it is over."""

import logging
import socket
import threading

import pytest

from raydix.runtime.actors.bootstrap import head_watch
from raydix.runtime.actors.bootstrap.head_watch import HeadNews, HeadSilence, watch_head


def test_a_head_that_answers_is_no_news() -> None:
    silence = HeadSilence(50.0, 0.0)
    assert [silence.note(now_s, has_answered=True) for now_s in (1.0, 100.0)] == [None, None]


def test_silence_is_told_once_and_so_is_its_end() -> None:
    silence = HeadSilence(50.0, 0.0)
    told = [silence.note(now_s, has_answered=False) for now_s in (1.0, 2.9, 3.0, 4.0, 49.9)]
    assert told == [None, None, HeadNews.SILENT, None, None]
    assert silence.note(49.95, has_answered=True) is HeadNews.BACK
    assert silence.note(51.0, has_answered=False) is None


def test_a_head_is_lost_after_so_long_since_its_last_answer() -> None:
    silence = HeadSilence(50.0, 0.0)
    assert silence.note(30.0, has_answered=True) is None
    assert silence.note(79.9, has_answered=False) is HeadNews.SILENT
    assert silence.note(80.0, has_answered=False) is HeadNews.LOST


def test_who_has_lost_its_head_says_what_to_do_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head_watch, "_LOOK_S", 0.0)
    monkeypatch.setattr(head_watch, "_LAST_WORDS_S", 0.0)
    monkeypatch.setattr(head_watch, "_TELL_S", 0.0)
    caplog.set_level(logging.INFO)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = watch_head(address, 0.5, lambda: True, ended.set)
        server.accept()
        assert not ended.is_set()
    thread.join(60)

    assert ended.is_set()
    silent, lost = [each.getMessage() for each in caplog.records]
    assert silent.startswith(f"the head of the Ray cluster at {address} does not answer. What runs")
    assert lost.startswith(f"the Ray cluster at {address} has lost its head")
    assert "Start the cluster again (ray start --head), then what ran on it" in lost


def test_who_belongs_to_another_cluster_by_now_is_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    thread = watch_head("127.0.0.1:1", 0.0, lambda: False, ended.set)
    thread.join(60)
    assert not thread.is_alive()
    assert not ended.is_set()
