"""The last error of a store: what, when, and how many."""

from raydix.runtime.storage.last_error import ErrorLog, LastError, join_errors


def test_last_error_is_kept_with_its_time_and_all_are_counted() -> None:
    times_s = iter([10.0, 20.0])
    log = ErrorLog(lambda: next(times_s))
    assert log.last is None

    log.note("refused")
    log.note(OSError(), 3)

    assert log.last == LastError(text="OSError", at_s=20.0, num_errors=4)
    assert LastError.from_values(log.last.to_values()) == log.last


def test_log_that_ends_leaves_its_last_error_to_another() -> None:
    log = ErrorLog(lambda: 10.0)
    log.note("refused")
    log.take_over(LastError(text="too early to count", at_s=1.0, num_errors=2))
    assert log.last == LastError(text="refused", at_s=10.0, num_errors=3)
    log.take_over(LastError(text="reset", at_s=20.0, num_errors=1))
    assert log.last == LastError(text="reset", at_s=20.0, num_errors=4)


def test_of_two_logs_the_later_error_counts_with_the_number_of_both() -> None:
    early = LastError(text="refused", at_s=1.0, num_errors=2)
    late = LastError(text="reset", at_s=5.0, num_errors=1)

    assert join_errors(early, late) == LastError(text="reset", at_s=5.0, num_errors=3)
    assert join_errors(late, early) == join_errors(early, late)
    assert join_errors(None, early) is early
    assert join_errors(early, None) is early
    assert join_errors(None, None) is None
