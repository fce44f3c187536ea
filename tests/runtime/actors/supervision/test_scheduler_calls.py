"""A running engine is recorded by its name, from another process, whoever asks it."""

import subprocess
import sys
from pathlib import Path

import pytest

from raydix import AsyncLLM, SamplingParams
from raydix.errors import BadRequest
from raydix.runtime.foresight.traces import read_trace
from tests.ray_cluster import SharedEngine

PROMPT = list(range(1, 41))

pytestmark = pytest.mark.ray


async def test_a_recording_of_another_process_has_what_this_one_asks(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    command = ("trace", "record", "--connect", shared_engine.name, "--out", str(path))
    recording = subprocess.Popen(
        [sys.executable, "-m", "raydix", *command, "--requests", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert recording.stderr is not None
    try:
        while "Recording engine" not in (line := recording.stderr.readline()):
            assert line, "it has ended"
        async with await AsyncLLM.connect(shared_engine.name) as engine:
            with pytest.raises(BadRequest, match="somebody records this engine already"):
                await engine.begin_recording()
            for prompt in (PROMPT, [*PROMPT, 7]):
                params = SamplingParams(max_tokens=2, ignore_eos=True)
                async for _ in engine.generate(prompt, params, session_id="s", priority=3):
                    pass
            assert recording.wait() == 0
            with pytest.raises(BadRequest, match="expected a multiple of this engine's"):
                await engine.begin_recording(10)
    finally:
        recording.kill()
        recording.wait()
        recording.stderr.close()
    first, second = read_trace(path, 16)
    assert (first.num_tokens, second.num_tokens) == (40, 41)
    assert first.blocks == second.blocks
    assert first.partial_block != second.partial_block
    assert (second.session, second.priority, second.num_answer_tokens) == (first.session, 3, 2)
