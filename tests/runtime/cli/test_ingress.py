"""`raydix ingress`: what is wrong with its words is told before any engine is looked for."""

from typing import Any

import pytest

from raydix.runtime.cli.ingress import engines_by_model


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["left@h"], "'left@h': the address is 'h'; expected HOST:PORT"),
        (["left@h:99999"], "a port of 0 to 65535"),
        (["left", "left"], "left is named twice"),
        (["left", "--http", "localhost:99999"], "--http: the port of 'localhost:99999' is 99999"),
        (["a=left", "b=left"], "left is named twice"),
        (["a=left", "right"], "right is of no model, but others are"),
        (["=left"], "expected MODEL=NAME"),
        (["a=prod/*", "a=left"], "prod/* is a whole service"),
        (["a=left", "--model-name", "b"], "both say what the models are called"),
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


def test_engines_are_of_the_models_that_their_words_name() -> None:
    assert engines_by_model(["left", "right@h:1"]) == {None: ["left", "right@h:1"]}
    named = ["chat=left", "code=prod/*", "chat=right@h:1"]
    assert engines_by_model(named) == {"chat": ["left", "right@h:1"], "code": ["prod/*"]}
