from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.engine_access import reach_engine
from raydix.runtime.cli.generate import generate_all


async def test_answers_keep_the_order_of_the_prompts(cluster):
    cluster.engines["mine"] = cluster.handle
    prompts = [f"prompt {i}" for i in range(100)]
    async with await reach_engine("mine", None) as engine:
        answers = [
            each async for each in generate_all(engine, prompts, SamplingParams(), as_chat=False)
        ]
    assert [answer["text"] for answer in answers] == prompts
    assert all(
        sum(answer["cached_tokens_by_source"].values()) in (0, answer["num_prompt_tokens"])
        for answer in answers
    )


def test_the_routing_key_goes_with_every_request(cluster, run):
    cluster.engines["mine"] = cluster.handle
    prompts = ("--prompt", "a", "--prompt", "b")
    assert run("generate", "--connect", "mine", *prompts, "--routing-key", "math") == 0
    assert [each.routing_key for each in cluster.links[0].sent] == ["math", "math"]
