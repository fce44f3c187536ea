"""`raydix profile` measures an engine whose steps take a known time."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.profile import _loaded_sizes, measure_profile, profile
from raydix.runtime.config.loading import load_config
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile, StepTimes
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


def test_the_time_of_a_prompt_is_told_with_all_that_it_consists_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copies = CopyTimes(bytes_per_s=1e9)
    step = StepTimes(
        fixed_s=0.002,
        prompt_fixed_s=0.001,
        prompt_token_s=1e-6,
        prompt_pair_s=2e-8,
        decode_row_s=1e-3,
    )

    async def measured(*_: object) -> Profile:
        return Profile(name="test", step=step, load=copies, backup=copies)

    monkeypatch.setattr("raydix.runtime.cli.profile._measure", measured)
    profile(tmp_path / "profile.json")
    said = capsys.readouterr().out
    assert "one request decodes takes 3.00 ms" in said
    assert "1,000 tokens 14.00 ms" in said, "2 ms, 1 ms, 1 ms, and 10 ms for half a million pairs"


@pytest.mark.parametrize(
    ("room_tokens", "sizes"),
    [
        (200_000, [1024, 1024, 1024, 4096, 4096, 8192, 8192]),
        (9_216, [1024] * 3),
        (4_096, [256] * 3),
        (64, []),
    ],
)
def test_a_small_l1_is_asked_for_smaller_prompts_to_load(
    room_tokens: int, sizes: list[int]
) -> None:
    assert _loaded_sizes(room_tokens, longest=8192) == sizes


class Asleep:
    """An engine that sleeps: it answers nothing."""

    def generate(self, *_: object) -> Any:
        """Nobody is to ask for anything."""
        raise AssertionError("the engine sleeps")

    async def stats(self) -> dict[str, Any]:
        """What is asked first."""
        return {"scheduler": {"phase": "asleep"}}


async def test_an_engine_that_sleeps_is_not_waited_for() -> None:
    with pytest.raises(BadRequest, match=r"the engine is asleep.*raydix wake"):
        await measure_profile(Asleep(), "test", vocab_size=VOCAB_SIZE, max_tokens=2048)


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
