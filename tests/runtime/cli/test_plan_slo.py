"""`raydix plan --slo` says how many ranks and nodes a trace needs, and how far off it may be."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.runtime.foresight.simulator.made_services import PROFILE

Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A trace of a crowd that comes at once, a configuration and a profile."""
    folder: Path = tmp_path_factory.mktemp("slo")
    checkpoint: Path = make_checkpoint(folder / "model", Family.QWEN3, seed=3)
    rows = [
        {
            "timestamp": 0,
            "input_length": 64,
            "output_length": 4,
            "hash_ids": [0, *range(3 * number + 1, 3 * number + 4)],
            "block_tokens": 16,
        }
        for number in range(16)
    ]
    trace, profile = folder / "trace.jsonl", folder / "profile.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile.write_text(PROFILE.model_dump_json())
    config = folder / "engine.yaml"
    config.write_text(
        f"model: {{path: {checkpoint}, device: cpu, max_model_len: 256}}\n"
        "cache: {page_size: 16, l1: {num_pages: 64}, l2: {bytes_per_node: 16MiB}}\n"
    )
    return [str(trace), "--model", str(config), "--profile", str(profile)]


def test_programs_read_each_size_and_the_smallest_that_is_enough(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    slo = ("--slo", "ttft_p90=30ms", "--slo", "tpot=1s", "--gpus-per-node", "2")
    assert run("plan", *arguments, *slo, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["depth"], figures["profile"]) == ("timed", "test")
    assert "within 2 points" in figures["error"]
    assert figures["targets_s"] == {"ttft_p90": 0.03, "tpot_p50": 1.0}
    answer, trials = figures["answer"], figures["trials"]
    assert answer["ttft_s"]["p90"] <= 0.03
    assert answer["ranks"] > 1
    smaller = [trial for trial in trials if trial["ranks"] < answer["ranks"]]
    assert smaller
    assert not any(trial["is_enough"] for trial in smaller)
    assert all(trial["ttft_s"]["p90"] > 0.03 for trial in smaller)


def test_people_read_the_depth_the_profile_and_the_error(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    assert run("plan", *arguments, "--slo", "ttft_p50=60s") == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("Timed depth, profile test, seed 0. Error: hits", "1 node with 1 rank."):
        assert words in out


def test_a_target_that_nothing_keeps_ends_with_1(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    bounds = ("--max-nodes", "2", "--gpus-per-node", "1")
    assert run("plan", *arguments, "--slo", "ttft_p50=1ms", *bounds) == 1
    assert "None up to 2 nodes is enough." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--slo", "fast"], "--slo is 'fast'; expected a percentile"),
        (["--slo", "ttft_p90=2s", "--png", "x.png"], "--png would be ignored"),
        (
            ["--slo", "ttft=1s", "--l1", "0", "--eviction", "reuse"],
            "--l1, --eviction would be ignored",
        ),
        (["--slo", "ttft_p90=2s", "--gpu", "H9"], "--gpu is 'H9'"),
        (["--slo", "ttft_p90=2s", "--set", "parallel.tp=2", "--gpus-per-node", "1"], "tp is 2"),
        ([], "--profile would be ignored, as without --slo"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    run: Run, capsys: Capture, arguments: list[str], more: list[str], words: str
) -> None:
    assert run("plan", *arguments, *more) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("left_out", "words"),
    [("--model", "Add --model CONFIG"), ("--profile", "Add --profile FILE")],
)
def test_what_is_needed_is_asked_for(
    run: Run, capsys: Capture, arguments: list[str], left_out: str, words: str
) -> None:
    at = arguments.index(left_out)
    given = [*arguments[:at], *arguments[at + 2 :]]
    assert run("plan", *given, "--slo", "ttft_p90=2s") == 1
    assert words in capsys.readouterr().err


def test_a_time_between_tokens_is_refused_where_no_answer_has_two(
    run: Run, capsys: Capture, arguments: list[str], tmp_path: Path
) -> None:
    trace, *others = arguments
    lines = Path(trace).read_text().splitlines()
    rows = [json.loads(line) | {"output_length": 1} for line in lines]
    short = tmp_path / "short.jsonl"
    short.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert run("plan", str(short), *others, "--slo", "tpot=1s") == 1

    said = capsys.readouterr()
    assert "--slo has tpot_p50" in said.err
    assert "no answer has two tokens" in said.err
    assert "enough" not in said.out
