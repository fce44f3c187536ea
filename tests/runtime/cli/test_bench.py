"""`raydix bench` as a whole, against a scripted engine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.cli.load.arrivals import poisson_arrivals
from raydix.runtime.messages.client import FailureKind, SubmitRequest
from tests.runtime.api.fake_engine import FakeCluster, FakeLink, echo, failed

Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]
SMALL = ("--conversations", "2", "--turns", "2", "--prompt-tokens", "8", "--turn-tokens", "2")


@pytest.fixture
def engine(cluster: FakeCluster) -> FakeCluster:
    cluster.engines["raydix"] = cluster.handle
    return cluster


def figures(printed: str) -> dict[str, float]:
    return {each["name"]: each["value"] for each in json.loads(printed)["figures"]}


def test_a_running_engine_is_measured(run: Run, capsys: Capture, engine: FakeCluster) -> None:
    assert run("bench", "--connect", "raydix", *SMALL, "--slo", "ttft=60 tpot=60", "--json") == 0
    found = figures(capsys.readouterr().out)
    assert found["measured"] == 2
    assert found["failed"] == 0
    assert found["within the SLO"] == 1
    assert found["from computed"] == 1
    assert found["TTFT p50"] <= found["TTFT p90"] <= found["TTFT p99"] <= found["latency p99"]
    assert found["goodput"] * 2 == pytest.approx(found["throughput"], rel=0.01)


def test_a_part_of_a_trace_is_refused_without_one(
    run: Run, capsys: Capture, engine: FakeCluster
) -> None:
    assert run("bench", "--connect", "raydix", *SMALL, "--requests", "6") == 1
    assert "--requests takes so many of a trace. Add --trace FILE" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--model", "--extra-body"])
def test_what_is_said_to_a_server_is_refused_without_one(
    run: Run, capsys: Capture, engine: FakeCluster, option: str
) -> None:
    assert run("bench", "--connect", "raydix", *SMALL, option, "{}") == 1
    assert "are for a server that --url names. Add --url." in capsys.readouterr().err


def test_cold_sends_what_was_measured_once_more_each_under_a_salt_of_its_own(
    run: Run, capsys: Capture, engine: FakeCluster
) -> None:
    assert run("bench", "--connect", "raydix", *SMALL, "--cold", "--json") == 0
    found = figures(capsys.readouterr().out)
    assert found["warm: measured"] == found["cold: measured"] == 2

    sent = engine.links[0].sent
    salts = [each.cache_salt for each in sent]
    assert len(set(salts[:4])) == 1
    assert len(set(salts)) == 3
    prompts = [each.token_ids.tolist() for each in sent]
    assert sorted(prompts[2:4]) == sorted(prompts[4:])


def test_a_trace_is_sent_to_people_s_tables_and_a_picture(
    run: Run, capsys: Capture, engine: FakeCluster, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    trace, png = tmp_path / "trace.jsonl", tmp_path / "bench.png"
    lines = [
        {"timestamp": 10 * i, "input_length": 600, "output_length": 64, "hash_ids": [0, i]}
        for i in range(5)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))

    arguments = ("--trace", str(trace), "--block-tokens", "16", "--requests", "4")
    assert run("bench", "--connect", "raydix", *arguments, "--png", str(png)) == 0

    printed = capsys.readouterr().out
    assert "TTFT, ms" in printed
    assert "prompt tokens: computed" in printed
    assert png.read_bytes().startswith(b"\x89PNG")
    assert [len(each.token_ids) for each in engine.links[0].sent] == [18] * 4


def test_requests_that_fail_are_counted_told_and_end_with_1(
    run: Run, capsys: Capture, engine: FakeCluster
) -> None:
    def fail_one(link: FakeLink, message: object) -> None:
        if len(link.sent) == 3:
            assert isinstance(message, SubmitRequest)
            link.deliver(failed(message.request_id, FailureKind.MODEL_FAILED))
        else:
            echo(link, message)

    engine.answer = fail_one
    arguments = (*SMALL, "--output-tokens", "2", "--concurrency", "1")
    assert run("bench", "--connect", "raydix", *arguments, "--json") == 1
    printed = capsys.readouterr()
    assert figures(printed.out)["failed"] == 1
    assert "1 failed: ModelFailed" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "2", "--concurrency", "3"], "Give one of them"),
        (["--speed", "2"], "--speed is for traces"),
        (["--slo", "fast"], "--slo fast: expected ttft"),
        (["--url", "http://127.0.0.1:1/v1", "--extra-body", "{"], "--extra-body is no JSON"),
        (["--url", "http://127.0.0.1:1/v1", "--connect", "raydix"], "--url"),
        (["--url", "http://127.0.0.1:1/v1"], "Nobody answers"),
        (["--url", "127.0.0.1:1/v1"], "expected http://HOST:PORT/v1"),
        (["--trace", "no/such/file"], "No such file"),
        (["--secret-file", "no/such/file"], "--secret-file is for engines on other hosts"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: Run, capsys: Capture, engine: FakeCluster, arguments: list[str], words: str
) -> None:
    is_url = "--url" in arguments
    assert run("bench", *([] if is_url else ["--connect", "raydix"]), *arguments) == 1
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


def test_a_picture_is_refused_before_anything_is_sent(
    run: Run, capsys: Capture, engine: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("bench", "--connect", "raydix", *SMALL, "--png", "x.png") == 1
    assert "raydix[bench]" in capsys.readouterr().err
    assert not engine.links


def test_the_load_is_told_in_the_record(run: Run, capsys: Capture, engine: FakeCluster) -> None:
    assert run("bench", "--connect", "raydix", *SMALL, "--rate", "500", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["benchmark"] == "bench"
    assert record["config"]["num_requests"] == 4
    assert record["config"]["last_arrival_s"] == poisson_arrivals(4, 500.0, seed=0)[-1]
