"""A running engine is recorded by its name, whoever asks it, over its control calls."""

import pytest

from raydix import AsyncLLM, SamplingParams
from raydix.errors import BadRequest
from tests.ray_cluster import SharedEngine

PROMPT = list(range(1, 41))

pytestmark = pytest.mark.ray


async def test_a_recording_has_what_others_ask(shared_engine: SharedEngine) -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    async with (
        await AsyncLLM.connect(shared_engine.name) as recorder,
        await AsyncLLM.connect(shared_engine.name) as engine,
    ):
        with pytest.raises(BadRequest, match="expected a multiple of this engine's"):
            await recorder.begin_recording(10)
        with pytest.raises(BadRequest, match="expected a whole number"):
            await recorder.begin_recording("16")  # type: ignore[arg-type]
        recording = await recorder.begin_recording()
        assert recording.block_tokens == 16
        with pytest.raises(BadRequest, match="somebody records this engine already"):
            await engine.begin_recording()
        for prompt in (PROMPT, [*PROMPT, 7]):
            hint = {"resume_in_s": 4.0}
            async for _ in engine.generate(
                prompt, params, session_id="s", priority=3, retention=hint
            ):
                pass
        first, second = (await recording.end()).requests
        with pytest.raises(BadRequest, match="there is no recording"):
            await recording.take()

    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (40, 41)
    assert first.blocks[:16] == second.blocks[:16]
    assert first.blocks[16:] != second.blocks[16:]
    assert (second.session, second.priority, second.num_answer_tokens) == (first.session, 3, 2)
    assert second.retention is not None
    assert second.retention.seconds == 4.0
