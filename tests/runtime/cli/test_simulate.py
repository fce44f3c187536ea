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
