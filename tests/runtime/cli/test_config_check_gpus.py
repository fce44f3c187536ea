"""What is told of GPUs that are not here: their buffers, and what depends on their kind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.model.model_shapes import SHAPES

CUDA = ("--set", "model.device=cuda", "--set", "cache.l2.bytes_per_node=1GiB")
Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


def folder_of(tmp_path: Path, shape: str) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[shape]))
    return str(tmp_path)


def test_buffers_of_dispatch_are_told_and_what_does_not_fit_is_refused(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    asked = ("config", "check", folder_of(tmp_path, "moe_l12"), *CUDA)
    shared = ("--set", "parallel.dp=8", "--set", "parallel.ep=8")

    assert run(*asked, "--gpu-memory", "80GiB", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dispatch_bytes_per_rank"] == 0
    assert run(*asked, *shared, "--gpu-memory", "80GiB") == 0
    assert "dispatch 257.3MiB per rank, buffers for tokens on their way" in capsys.readouterr().out

    large = ("--set", "scheduler.chunked_prefill_tokens=65536")
    assert run(*asked, *shared, *large, "--gpu-memory", "40GiB") == 1
    told = capsys.readouterr().err
    assert "buffers of experts.dispatch 7.5" in told
    assert "lower scheduler.chunked_prefill_tokens" in told


def test_memory_without_a_kind_is_told_for_kinds_that_keep_float8_too(
    run: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = ("config", "check", folder_of(tmp_path, "moe_l12_fp8"), *CUDA)
    told = "the kind of GPU is not known, so float8 counts as restored; H100 and H200 keep it"

    assert run(*asked, "--gpu-memory", "80GiB") == 0
    out = capsys.readouterr().out
    assert told in out
    assert "of weights per rank; with 80GiB it fits, with " in out

    # Restored they take 14 GiB, kept half.
    assert run(*asked, "--gpu-memory", "14GiB") == 1
    captured = capsys.readouterr()
    assert "with 14GiB it fits, with " in captured.out
    assert "leaves too little for KV" in captured.err
    assert run(*asked, "--gpu-memory", "8GiB") == 1
    assert "with 8GiB it does not fit" in capsys.readouterr().out

    assert run(*asked) == 0
    assert f"{told}: " in capsys.readouterr().out
    for known in (("--gpu", "H200"), ("--gpu", "A100 80GB")):
        assert run(*asked, *known) == 0
        assert told not in capsys.readouterr().out
    restore = ("--set", "model.quantization=restore")
    assert run(*asked, *restore, "--gpu-memory", "80GiB") == 0
    assert told not in capsys.readouterr().out
