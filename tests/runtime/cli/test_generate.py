from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.generate import generate_all


async def test_answers_keep_the_order_of_the_prompts(cluster):
    cluster.engines["mine"] = cluster.handle
    prompts = [f"prompt {i}" for i in range(100)]
    async with await Where("mine").reach() as engine:
        answers = [
            each async for each in generate_all(engine, prompts, SamplingParams(), as_chat=False)
        ]
    assert [answer["text"] for answer in answers] == prompts
    assert all(
        sum(answer["cached_tokens_by_source"].values()) in (0, answer["num_prompt_tokens"])
        for answer in answers
    )
