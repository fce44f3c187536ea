import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.device.gpus import require_gpus
from benchmarks.records.command_line import (
    add_results,
    count,
    make_parser,
    positive,
    quantity,
    run,
    seed,
)
from benchmarks.records.record import REPOSITORY, RESULTS
from raydix.errors import ConfigError

RELOAD = str(RESULTS / "reload.json")


def test_a_count_is_at_least_one() -> None:
    assert count("12") == 12


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "many", ""])
def test_no_other_count_is_taken(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no whole number of at least 1"):
        count(text)


@pytest.mark.parametrize("text", ["-0.1", "nan", "inf", "much", ""])
def test_no_other_quantity_is_taken(text: str) -> None:
    assert quantity("0") == 0
    assert quantity("2.5") == 2.5
    with pytest.raises(argparse.ArgumentTypeError, match="no number of at least 0"):
        quantity(text)


def test_what_must_be_positive_is_not_zero() -> None:
    assert positive("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="0 is no number above 0"):
        positive("0")


@pytest.mark.parametrize("text", ["-1", "0.5", "x"])
def test_no_other_seed_is_taken(text: str) -> None:
    assert seed("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match="no whole number of at least 0"):
        seed(text)


def test_a_folder_for_records_is_made(tmp_path: Path) -> None:
    parser = make_parser(None)
    add_results(parser, help="folder for the record")

    folder = parser.parse_args(["--results", str(tmp_path / "new" / "results")]).results

    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    parser = make_parser(None)
    add_results(parser, help="folder for the record")

    with pytest.raises(SystemExit):
        parser.parse_args(["--results", str(tmp_path / "file" / "results")])

    assert "expected one that can be written" in capsys.readouterr().err


def test_a_run_ends_with_the_status_of_its_bars() -> None:
    with pytest.raises(SystemExit) as ended:
        run(lambda: 1)

    assert ended.value.code == 1


def test_ctrl_c_ends_a_run_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run(interrupted)

    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_too_few_gpus_are_told_with_how_many_were_expected() -> None:
    more = torch.cuda.device_count() + 1

    with pytest.raises(ConfigError, match=f"expected at least {more}. Try a cpu."):
        require_gpus(more, "Try a cpu.")


@pytest.mark.parametrize("words", [("plot", RELOAD), ("readme_plot",)], ids=lambda each: each[0])
def test_without_matplotlib_it_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    # It stands before the real one.
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(name='matplotlib')")
    module, *arguments = words

    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert ended.stderr == "ConfigError: Pictures need matplotlib: pip install matplotlib.\n"


@pytest.mark.parametrize("words", [("reload",), ("plot", "nowhere.json")], ids=["gpu", "file"])
def test_what_a_benchmark_lacks_is_one_line(words: tuple[str, ...]) -> None:
    module, *arguments = words
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
