import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix import __version__
from raydix.errors import BadRequest
from raydix.runtime.cli import main as cli
from raydix.runtime.cli.stop_signal import STOPPED_STATUS

PROJECT = Path(__file__).parents[3]


def test_output_that_the_locale_cannot_write_is_escaped(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(cli, "app", lambda: print("中 and more"))

    assert run() == 0

    sys.stdout.flush()
    assert written.getvalue() == b"\\u4e2d and more\n"


def test_a_full_disk_is_told_in_one_line(
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write() -> None:
        with Path("/dev/full").open("w") as file:
            file.write("answer")

    monkeypatch.setattr(cli, "app", write)

    assert run() == 1

    assert capsys.readouterr().err == "OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", ".", "--nodes", "0"], "greater than or equal to 1 (it is '0')"),
        (["cache", "pin", "--keep-s", "soon"], "as a number (it is 'soon')"),
    ],
)
def test_an_option_is_refused_with_the_value_that_is_wrong(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert run(*arguments) == 2
    told = capsys.readouterr().err.replace("│", " ")
    assert words in " ".join(told.split())


def test_the_schema_is_json_with_every_section(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("config", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {
        "model",
        "parallel",
        "experts",
        "cache",
        "scheduler",
        "role",
        "ray",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["generate", "no/such/folder", "--prompt", "x"],
            "neither a YAML file nor a checkpoint folder",
        ),
        (["serve", ".", "--set", "cache.l1.num_page=4"], "Did you mean cache.l1.num_pages?"),
        (["bench", ".", "--set", "cache.l1"], "expected KEY=VALUE"),
        (["cache", "attach", "--set", "model.path=x"], "sets cache.l3 and nothing else"),
        (["cache", "attach"], "Give --set cache.l3.backend=NAME"),
        (
            ["generate", ".", "--connect", "raydix", "--prompt", "x"],
            "--connect uses a running engine as it is",
        ),
    ],
)
def test_an_error_is_one_line_without_a_traceback(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert run(*arguments) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ConfigError: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_an_error_inside_a_group_of_tasks_is_one_line_too(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [BadRequest("top_p is 2")])])

    monkeypatch.setattr(cli, "app", fail)

    assert run() == 1
    assert capsys.readouterr().err == "BadRequest: top_p is 2\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ExceptionGroup("tasks", [BadRequest("expected"), KeyError("a bug")])

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ExceptionGroup):
        cli.main()


def test_the_version_is_printed(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    "command", ["generate", "serve", "demo", "bench", "doctor", "cache", "config"]
)
def test_every_command_explains_itself(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(command, "--help") == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["typer", "ray", "msgspec"])
def test_a_package_that_is_not_installed_is_one_line_that_says_what_to_do(package: str) -> None:
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; "
        "sys.argv = ['raydix', 'cache', 'stats']; runpy.run_module('raydix', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"Raydix needs the package {package}, ")
    assert "--runtime-env examples/runtime_env.yaml" in result.stderr
    assert result.stderr.count("\n") == 1


def run_interrupted(interruption: str, before: str = "") -> tuple[int, str]:
    """Status and errors of a command line during whose import this is executed."""
    with open(PROJECT / "pyproject.toml", "rb") as file:
        script = tomllib.load(file)["project"]["scripts"]["raydix"]
    module, _, function = script.partition(":")
    code = (
        "import importlib, signal, sys, types\n"
        "def interrupt(name, *_):\n"
        f"    if name == 'raydix.runtime.cli.main': {interruption}\n"
        "sys.meta_path.insert(0, types.SimpleNamespace(find_spec=interrupt))\n"
        f"{before}\n"
        f"importlib.import_module({module!r}).{function}()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return result.returncode, result.stderr


def test_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback() -> None:
    assert run_interrupted("raise KeyboardInterrupt") == (STOPPED_STATUS, "")


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_sigterm_ends_as_ctrl_c_does_and_says_so(before: str) -> None:
    status, told = run_interrupted("signal.raise_signal(signal.SIGTERM)", before)
    assert (status, told) == (STOPPED_STATUS, "SIGTERM: raydix ends\n")


def test_what_every_verb_imports_at_once_is_quick() -> None:
    code = (
        "import sys, raydix.runtime.cli.main; "
        "print(*(each for each in ('torch', 'ray', 'transformers') if each in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
