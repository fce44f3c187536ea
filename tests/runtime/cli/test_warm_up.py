"""`raydix warm-up`: what it refuses; what it writes is looked at where there is Triton."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.model.model_shapes import SHAPES, write_shape
from raydix.errors import ConfigError
from raydix.runtime.cli.main import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["warm-up", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_model_of_the_cpu_has_no_kernels(tmp_path: Path) -> None:
    folder = str(write_shape(SHAPES["dense_l16"], tmp_path))

    with pytest.raises(ConfigError, match=r"Set model\.device to cuda"):
        run(folder, "--out", str(tmp_path / "out"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="there is Triton")
def test_without_triton_it_is_asked_for(tmp_path: Path) -> None:
    folder = str(write_shape(SHAPES["dense_l16"], tmp_path))

    with pytest.raises(ConfigError, match="triton is not installed"):
        run(
            folder,
            "--out",
            str(tmp_path / "out"),
            "--set",
            "model.device=cuda",
            "--set",
            "cache.l2=null",
        )
