"""`raydix profile` measures an engine whose steps take a known time."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.profile import measure_profile, profile
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE, build_sleeping_model


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "absent" / "profile.json"
    assert run("profile", "--out", str(out), "--connect", "nobody") == 1
    assert f"--out {out} cannot be written" in capsys.readouterr().err


def test_a_connection_that_ends_is_not_told_as_a_file_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(*_: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("raydix.runtime.cli.profile._measure", fail)
    out = tmp_path / "profile.json"
    with pytest.raises(ConnectionResetError):
        profile(out)
    assert not out.exists()


async def test_the_time_of_a_step_is_found() -> None:
    config = load_config(
        {
            "model": {"path": "none", "max_model_len": 2048},
            "cache": {"page_size": 64, "l1": {"num_pages": 256}, "l2": None},
        }
    )
    async with in_process_engine(config, partial(build_sleeping_model, step_s=0.003)) as engine:
        with pytest.raises(BadRequest, match="context is 512 tokens"):
            await measure_profile(
                InProcessLLM(engine, engine.client), "test", vocab_size=VOCAB_SIZE, max_tokens=512
            )
        found = await measure_profile(
            InProcessLLM(engine, engine.client), "test", vocab_size=VOCAB_SIZE, max_tokens=2048
        )
    # A loaded machine oversleeps.
    assert 0.003 <= found.step.fixed_s + 32 * found.step.decode_row_s < 0.02
    assert found.step.prompt_token_s < 1e-4
    assert "no load was seen" in found.measured_on
