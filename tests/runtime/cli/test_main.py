import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli import main as cli
from raydix.runtime.cli import session


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `raydix ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["raydix", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_the_schema_is_json_with_every_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "config", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {"model", "parallel", "cache", "scheduler"}


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert run(monkeypatch, *arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ConfigError: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_an_error_inside_a_group_of_tasks_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [BadRequest("top_p is 2")])])

    monkeypatch.setattr(cli, "app", fail)
    assert run(monkeypatch) == 1
    assert capsys.readouterr().err == "BadRequest: top_p is 2\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ExceptionGroup("tasks", [BadRequest("expected"), KeyError("a bug")])

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ExceptionGroup):
        cli.main()


def test_set_is_repeatable_and_the_last_one_wins() -> None:
    settings = ["cache.l1.num_pages=1", "cache.l1.num_pages=2", "parallel.dp=3"]
    assert cli._sections(settings) == {"cache": {"l1": {"num_pages": 2}}, "parallel": {"dp": 3}}


def test_json_output_is_not_mixed_with_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with cli._standard_output(as_json=True) as (console, stdout):
        print("a line of Ray")
        console.print("a table")
        cli._print_json({"value": 1}, stdout)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"value": 1}
    assert "a line of Ray" in printed.err
    assert "a table" in printed.err


def test_nested_values_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli._print_values({"scheduler": {"num_plans": 3, "cpu_s": 0.5}, "l2": 7}, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["l2", "7"], ["scheduler.cpu_s", "0.5"], ["scheduler.num_plans", "3"]]


@pytest.mark.parametrize(
    "command", ["generate", "serve", "demo", "bench", "doctor", "cache", "config"]
)
def test_every_command_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("is_json", [True, False])
def test_cache_prefetch_says_per_prompt_where_its_tokens_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    sources = [
        {"l1": 1, "l2": 2, "l3": 1000, "computed:not_found": 4, "computed:partial_page": 5},
        {"l3": 7},
    ]

    async def prefetch(name: str, address: str | None, path: Path) -> list[dict[str, int]]:
        assert (name, path) == ("engine", Path("prompts.jsonl"))
        return sources

    monkeypatch.setattr(session, "cache_prefetch", prefetch)
    flags = ["--json"] if is_json else []
    assert (
        run(
            monkeypatch,
            "cache",
            "prefetch",
            "--file",
            "prompts.jsonl",
            "--connect",
            "engine",
            *flags,
        )
        == 0
    )
    printed = capsys.readouterr().out
    if is_json:
        assert json.loads(printed) == sources
    else:
        rows = [
            [word for word in line.split() if word[0].isdigit()]
            for line in printed.splitlines()
            if "│" in line
        ]
        assert rows == [["1", "1,012", "1", "2", "1,000", "9"], ["2", "7", "0", "0", "7", "0"]]


def test_doctor_reports_each_subject_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "doctor", "--json")
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    subjects = [finding["subject"] for finding in findings]
    assert len(subjects) == len(set(subjects))
    assert {
        "python",
        "torch",
        "ray",
        "memory",
        "memfd",
        "/dev/shm",
        "storage: file",
        "device",
    } <= set(subjects)
    assert {"storage: redis", "storage: s3", "storage: hf3fs"} <= set(subjects)
    assert all(finding["detail"] for finding in findings)


def test_doctor_needs_no_torch() -> None:
    code = (
        "import sys; from raydix.runtime.cli.doctor import examine; examine(); print('torch' in "
        "sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
