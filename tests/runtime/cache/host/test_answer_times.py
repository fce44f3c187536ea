"""How long an answer may take, by how long the latest took."""

from raydix.runtime.cache.host.answer_times import AnswerTimes


def test_patience_keeps_between_its_bounds() -> None:
    times = AnswerTimes(2.0, 15.0, first_s=15.0)
    assert times.patience_s == 15.0
    times.note(0.01)
    assert times.patience_s == 2.0
    times.note(2.0)
    assert times.patience_s == 4.0
    times.note(9.0)
    assert times.patience_s == 15.0


def test_every_answer_pushes_an_old_one_out() -> None:
    times = AnswerTimes(2.0, 15.0, first_s=15.0)
    times.note(9.0)
    for _ in range(16):
        times.note(0.01)
    assert times.patience_s == 2.0


def test_only_what_is_always_slow_is_slow() -> None:
    times = AnswerTimes(2.0, 15.0, first_s=15.0)
    assert times.usual_s == 0.0
    for time_s in (3.0, 3.0, 3.0, 3.0):
        times.note(time_s)
    assert times.usual_s == 3.0
    times.note(0.02)
    assert times.usual_s == 0.02


def test_what_its_size_explains_counts_as_slow_and_not_as_late() -> None:
    times = AnswerTimes(2.0, 15.0, first_s=15.0)
    times.note(7.0, allowed_s=6.5)
    assert times.patience_s == 2.0
    times.note(7.0, allowed_s=5.0)
    assert times.patience_s == 4.0
    assert times.usual_s == 7.0
    times.note(1.0, allowed_s=6.5)
    assert times.patience_s == 4.0
