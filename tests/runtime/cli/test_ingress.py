"""`raydix ingress`: what is wrong with its words is told before any engine is looked for."""

from typing import Any

import pytest

from raydix.runtime.actors.service import ray_engines
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
        (["bad name"], "is named 'bad name'; expected NAME or NAME@HOST:PORT. NAME is up to 100"),
        (["a=prod/x"], "behind that of a service there may be /NUMBER"),
        (["a=bad name/*"], "The service of bad name/* is 'bad name'; expected up to 100 letters"),
        (["a=/*"], "The service of /* is ''; expected up to 100 letters"),
        (["a="], "expected MODEL=NAME"),
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


def test_a_service_of_no_cluster_is_told_what_to_name(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_engines, "is_to_be_private", lambda address: True)

    assert run("ingress", "a=prod/*", "--http", "127.0.0.1:0") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "no Ray cluster is named where service prod could run. Name it by its HOST:PORT" in told


def test_engines_are_of_the_models_that_their_words_name() -> None:
    assert engines_by_model(["left", "right@h:1"]) == {None: ["left", "right@h:1"]}
    named = ["chat=left", "code=prod/*", "chat=right@h:1"]
    assert engines_by_model(named) == {"chat": ["left", "right@h:1"], "code": ["prod/*"]}
