"""`raydix ingress`: what is wrong with its words is told before any engine is looked for."""

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["left@h"], "'left@h': the address is 'h'; expected HOST:PORT"),
        (["left@h:99999"], "a port of 0 to 65535"),
        (["left", "left"], "left is named twice"),
        (["left", "--http", "localhost:99999"], "--http: the port of 'localhost:99999' is 99999"),
        (["left", "--http", "0.0.0.0:0"], "Add --keys FILE"),
    ],
)
def test_wrong_words_are_told_with_what_was_expected(
    run: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert run("ingress", *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("ConfigError: ")
    assert problem in " ".join(error.split())
