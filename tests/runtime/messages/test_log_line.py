import logging
import sys

import pytest

from raydix.runtime.messages.log_line import MAX_TEXT_CHARACTERS, LogLine


def record(text: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord(
        "raydix.x",
        logging.ERROR,
        "x.py",
        1,
        text,
        arguments,
        exc_info,  # type: ignore[arg-type]
    )


def test_a_line_arrives_as_it_was_sent() -> None:
    line = LogLine.of(record("%d pages", 3), "gpu0")
    assert LogLine.decode(line.encode()) == line
    assert (line.actor, line.text, line.logger) == ("gpu0", "3 pages", "raydix.x")


def test_an_exception_comes_with_its_traceback() -> None:
    try:
        raise ValueError("for a reason")
    except ValueError:
        line = LogLine.of(record("cannot go on", exc_info=sys.exc_info()), "gpu0")
    assert line.text.startswith("cannot go on\nTraceback")
    assert line.text.endswith("ValueError: for a reason")


def test_what_is_no_unicode_is_told_all_the_same() -> None:
    line = LogLine.of(record("no file %s", "/data/\udcff"), "gpu0")
    assert LogLine.decode(line.encode()).text == "no file /data/\\udcff"


def test_a_long_text_keeps_both_ends() -> None:
    text = LogLine.of(record("a" * MAX_TEXT_CHARACTERS + "the end"), "gpu0").text
    assert text.startswith("aaa")
    assert "\n[7 characters left out]\n" in text
    assert text.endswith("the end")


@pytest.mark.parametrize(
    "data", [b"", b"\x93\x01\x02", b"\x01", b"\x92\x01\x02", b"\x95" + b"\xc0" * 5]
)
def test_other_bytes_are_no_line(data: bytes) -> None:
    with pytest.raises(ValueError):
        LogLine.decode(data)
