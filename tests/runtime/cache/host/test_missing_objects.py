from raydix.runtime.cache.host.missing_objects import MissingObjects
from tests.runtime.cache.host.host_values import make_key

A, B, C = map(make_key, "abc")


def test_a_missing_name_is_known_for_its_time_and_in_its_group() -> None:
    missing = MissingObjects(1.0, 10)
    missing.note(0, A, now_s=5.0)
    assert missing.has(0, A, 5.9)
    assert not missing.has(0, A, 6.0)
    assert not missing.has(1, A, 5.0)
    missing.note(0, A, now_s=6.0)
    assert missing.has(0, A, 6.9)


def test_a_written_name_is_forgotten_at_once() -> None:
    missing = MissingObjects(1.0, 10)
    missing.note(0, A, now_s=0.0)
    missing.forget(0, A)
    missing.forget(0, B)
    assert not missing.has(0, A, 0.0)


def test_the_oldest_names_go_when_there_are_too_many() -> None:
    missing = MissingObjects(1.0, 2)
    for key in (A, B, A, C):
        missing.note(0, key, now_s=0.0)
    assert [missing.has(0, key, 0.5) for key in (A, B, C)] == [True, False, True]


def test_a_name_is_kept_no_longer_than_it_is_known() -> None:
    missing = MissingObjects(1.0, 10)
    missing.note(0, A, now_s=0.0)
    missing.note(0, B, now_s=0.5)
    missing.note(0, C, now_s=1.0)
    assert len(missing) == 2
    assert missing.has(0, B, 1.0)


def test_news_are_told_once_and_void_with_another_backend() -> None:
    missing = MissingObjects(1.0, 10)
    missing.note(0, A, now_s=0.0)
    assert missing.take_news() == [(0, A)]
    assert missing.take_news() == []
    missing.note(1, B, now_s=0.0)
    missing.forget_all()
    assert missing.take_news() == []
    assert not missing.has(0, A, 0.0)
