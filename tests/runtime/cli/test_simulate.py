"""`raydix simulate` tells people and programs what engines would do with a trace."""

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
    """A configuration, a trace of six requests, and a profile."""
    folder: Path = tmp_path_factory.mktemp("simulate")
    checkpoint: Path = make_checkpoint(folder / "model", Family.QWEN3, seed=3)
    rows = [
        {"timestamp": 500 * number, "input_length": 50, "output_length": 4, "hash_ids": ids}
        for number, ids in enumerate([[0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 6, 7]] * 2)
    ]
    trace, profile = folder / "trace.jsonl", folder / "profile.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile.write_text(PROFILE.model_dump_json())
    config = folder / "engine.yaml"
    config.write_text(
        f"model: {{path: {checkpoint}, device: cpu}}\n"
        "cache: {page_size: 16, l1: {num_pages: 64}, l2: {bytes_per_node: 16MiB}}\n"
    )
    return [str(config), str(trace), "--profile", str(profile), "--block-tokens", "16"]


def test_programs_read_equal_bytes_for_equal_seeds(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    told = []
    for _ in range(2):
        assert run("simulate", *arguments, "--json", "--nodes", "2", "--kill", "rank=1") == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    figures = json.loads(told[0])
    assert figures["requests"] == 6
    assert figures["failures"] == {}
    assert sum(figures["prompt_tokens"].values()) == 300
    assert figures["depth"] == "timed"


def test_people_read_tables(run: Run, capsys: Capture, arguments: list[str]) -> None:
    assert run("simulate", *arguments, "--closed-loop") == 0
    out = capsys.readouterr().out
    for words in ("L1 (GPU actor's pages)", "first token", "each next token", "hits", "p90"):
        assert words in out


def test_a_simulation_of_which_nothing_is_answered_has_failed(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    assert run("simulate", *arguments, "--set", "model.max_model_len=32", "--json") == 1
    assert json.loads(capsys.readouterr().out)["failures"] == {"PromptTooLong": 6}


def test_a_kill_of_nothing_known_is_told(run: Run, capsys: Capture, arguments: list[str]) -> None:
    assert run("simulate", *arguments, "--kill", "gpu=1") == 1
    assert "expected KIND=N with a kind among rank, host" in capsys.readouterr().err


def test_engines_of_a_node_have_roles(run: Run, capsys: Capture, arguments: list[str]) -> None:
    told = []
    for options in (["--roles", "prefill,both"], ["--nodes", "2"]):
        assert run("simulate", *arguments, "--json", *options) == 0
        told.append(json.loads(capsys.readouterr().out))
    apart, equal = told
    assert apart["failures"] == equal["failures"] == {}
    assert set(apart["requests_by_engine"]) <= {"node 0 engine 0", "node 0 engine 1"}
    assert set(equal["requests_by_engine"]) <= {"node 0", "node 1"}
    assert equal["gap_s"]["p99"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--roles", "prefill,gpu"], "gpu is no role; expected roles among prefill,"),
        (["--roles", "prefill,"], "nothing is no role"),
        (["--roles", "prefill,prefill"], "none would go on with what these engines begin"),
        (["--prefill-nodes", "2", "--nodes", "2"], "expected --nodes 3 at least"),
        (["--prefill-nodes", "1", "--nodes", "2"], "cache.l2.pull is not set"),
        (
            ["--prefill-nodes", "1", "--nodes", "2", "--roles", "prefill,both"],
            "expected one of them",
        ),
        (
            ["--roles", "prefill,both", "--tokens-per-simulated", "8"],
            "--tokens-per-simulated is 8, and engines compute prompts for others; expected 1",
        ),
        (
            ["--roles", "prefill,both", "--set", "cache.write_policy=write_back"],
            "--roles has prefill, and for these engines: role is prefill",
        ),
        (["--roles", "prefill,both", "--set", "cache.l2=null"], "Set cache.l2"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
def test_roles_that_could_hand_nothing_over_are_refused(
    run: Run, capsys: Capture, arguments: list[str], options: list[str], words: str
) -> None:
    assert run("simulate", *arguments, *options) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_nodes_that_compute_prompts_for_others_are_counted(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    pulls = ["--set", "cache.l2.pull={}", "--nodes", "3", "--prefill-nodes", "1"]
    assert run("simulate", *arguments, *pulls) == 0
    out = capsys.readouterr().out
    assert "prefill" in out
    assert "gap between tokens" in out


def test_a_profile_of_which_a_step_takes_years_is_told_in_words(
    run: Run, capsys: Capture, arguments: list[str], tmp_path: Path
) -> None:
    slow = PROFILE.model_copy(update={"step": PROFILE.step.model_copy(update={"fixed_s": 1e9})})
    profile = tmp_path / "slow.json"
    profile.write_text(slow.model_dump_json())
    assert run("simulate", *arguments, "--profile", str(profile)) == 1
    assert "Look whether the times of profile test are seconds" in capsys.readouterr().err


def test_what_is_not_there_is_not_killed_in_silence(
    run: Run, capsys: Capture, arguments: list[str]
) -> None:
    assert run("simulate", *arguments, "--set", "cache.l2=null", "--kill", "host=2") == 1
    assert "--kill is host=2, and cache.l2 is off" in capsys.readouterr().err


def test_one_request_is_told_as_one(run: Run, capsys: Capture, arguments: list[str]) -> None:
    assert run("simulate", *arguments, "--requests", "1") == 0
    assert "1 request in " in capsys.readouterr().out
