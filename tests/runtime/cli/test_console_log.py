import io
import logging
import logging.config
import threading

import pytest

from raydix.runtime.actors.bootstrap.log_follower import deliver
from raydix.runtime.cli import console_log
from raydix.runtime.cli.console_log import logging_to_console
from raydix.runtime.messages.log_line import LogLine

LINE = LogLine(time_s=0.5, level=logging.INFO, actor="gpu0", logger="raydix.runtime.x", text="100%")


def show(line: LogLine) -> str:
    return f"{line.actor}: {line.text}"


class StuckConsole(io.StringIO):
    """Takes one line, and the next ones only once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck, self.may_go_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_stuck.set()
        assert self.may_go_on.wait(10)
        return super().write(text)


def test_own_lines_and_those_of_actors_are_shown_while_it_lasts() -> None:
    out = io.StringIO()
    with logging_to_console(show, "serve", out):
        logging.getLogger("raydix.runtime.y").info("here")
        logging.getLogger("elsewhere").error("not ours")
        deliver(LINE)
    logging.getLogger("raydix.runtime.y").warning("too late")
    assert out.getvalue() == "serve: here\ngpu0: 100%\n"


def test_a_console_that_does_not_read_stops_nobody_and_what_it_misses_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_log, "_MAX_WAITING", 2)
    out = StuckConsole()
    with logging_to_console(show, "serve", out):
        logging.getLogger("raydix.x").info("first")
        assert out.is_stuck.wait(10)
        for i in range(5):
            logging.getLogger("raydix.x").info("%d", i)
        out.may_go_on.set()
    loss = "serve: 3 lines were dropped, as the console did not take them\n"
    assert out.getvalue() == f"serve: first\n{loss}serve: 0\nserve: 1\n"


def test_whoever_sets_logging_up_anew_does_not_end_it() -> None:
    out = io.StringIO()
    with logging_to_console(show, "serve", out):
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        logging.getLogger("raydix.x").info("still here")
    assert out.getvalue() == "serve: still here\n"


def test_a_closed_console_ends_nothing() -> None:
    out = io.StringIO()
    out.close()
    with logging_to_console(show, "serve", out):
        logging.getLogger("raydix.x").info("unseen")


def test_without_a_handler_only_warnings_of_actors_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    deliver(LINE)
    deliver(
        LogLine(
            time_s=0.5, level=logging.WARNING, actor="gpu0", logger="raydix.x", text="it is slow"
        )
    )
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.endswith("WARNING gpu0       it is slow")
