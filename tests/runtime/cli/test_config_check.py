"""What an engine would take, told without starting it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

CUDA = ("--set", "model.device=cuda", "--set", "cache.l2.bytes_per_node=1GiB")
Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint's config without its weights."""
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("model"), Family.QWEN3, seed=3)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    return str(folder)


def test_every_tier_is_told_for_people(run: Run, capsys: Capture, model: str) -> None:
    assert run("config", "check", model) == 0
    out = capsys.readouterr().out
    for words in ("L1     1,024 pages = 16,384 tokens", "weights ", "context at most ", "node "):
        assert words in out


def test_json_has_the_figures_alone(run: Run, capsys: Capture, model: str) -> None:
    assert run("config", "check", model, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["l1_pages_per_rank"] == [1024]
    assert figures["l2_bytes_per_node"] == pytest.approx(4 * figures["l1_bytes_per_rank"], rel=0.1)
    assert figures["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "parallel.tp=3"], "heads cannot be divided"),
        (["--set", "parallel.dp=4096"], "4096 ranks need a CPU each"),
        (["--node-memory", "1MiB"], "of which 1MiB are free. Lower cache.l2.bytes_per_node"),
        ([*CUDA, "--gpu-memory", "1GiB"], "leaves -"),
        (
            [*CUDA, "--gpu-memory", "3GiB", "--set", "cache.l1.num_pages=1000000"],
            "of its GPU, which has 3GiB. Lower cache.l1.num_pages",
        ),
        (
            ["--set", "cache.l3={backend: file, path: x, max_bytes: 64}"],
            "cache.l3.max_bytes is 64, less than the",
        ),
        (
            ["--set", "cache.l2={bytes_per_node: 64}"],
            "the host arena of 64 bytes holds 0 pages of ",
        ),
        (["--gpu-memory", "much"], "--gpu-memory is 'much'; expected bytes or a number"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_status_1(
    run: Run, capsys: Capture, model: str, arguments: list[str], words: str
) -> None:
    assert run("config", "check", model, *arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("ConfigError: ")
    assert words in printed
    assert printed.count("\n") == 1


def test_for_a_gpu_that_is_not_named_each_kind_is_told(
    run: Run, capsys: Capture, model: str
) -> None:
    assert run("config", "check", model, *CUDA, "--gpu-memory", "80GiB", "--json") == 0
    with_80 = json.loads(capsys.readouterr().out)
    assert run("config", "check", model, *CUDA, "--gpu-memory", "40GiB", "--json") == 0
    with_40 = json.loads(capsys.readouterr().out)
    assert with_80["l1_pages_per_rank"][0] > 2 * with_40["l1_pages_per_rank"][0]

    assert run("config", "check", model, *CUDA) == 0
    out = capsys.readouterr().out
    assert "H200: fits, with " in out


def test_serve_can_be_asked_without_starting_anything(
    run: Run, capsys: Capture, model: str
) -> None:
    assert run("serve", model, "--dry-run") == 0
    assert "weights " in capsys.readouterr().out
