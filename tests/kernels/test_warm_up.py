from pathlib import Path

import pytest

pytest.importorskip("triton")

from raydix.errors import ConfigError
from raydix.runtime.actors.kernel_build import write_kernels
from raydix.runtime.config.loading import load_config


@pytest.mark.parametrize("told", ["", "9.0", "9:x", "hopper:132"])
def test_a_gpu_that_is_told_wrongly_is_refused(told: str, tmp_path: Path) -> None:
    config = load_config(
        {"model": {"path": str(tmp_path), "device": "cuda"}, "cache": {"l2": None}}
    )

    with pytest.raises(ConfigError, match="such as 9"):
        write_kernels(config, tmp_path / "out", tmp_path / "cache", told)
