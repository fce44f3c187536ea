"""Generate for a batch of prompts, and show where the prompts' tokens came from.

python examples/offline_batch.py CHECKPOINT_FOLDER
"""

import sys
from collections import Counter

from raydix import LLM, SamplingParams

SYSTEM = (
    "You are a patient teacher. Explain the following to a curious child, in one short paragraph. "
)
TOPICS = ["rain", "the moon", "bread", "magnets", "echoes", "rust", "tides", "yeast"]


def main(checkpoint: str) -> None:
    """Run the batch twice: the second time, the prompts come from the cache."""
    prompts = [SYSTEM + topic for topic in TOPICS]
    params = SamplingParams(temperature=0.0, max_tokens=48)
    with LLM(checkpoint) as llm:
        for attempt in ("cold", "warm"):
            tokens_by_source: Counter[str] = Counter()
            for topic, output in zip(TOPICS, llm.generate(prompts, params), strict=True):
                tokens_by_source.update(output.metrics.cached_tokens_by_source)
                print(f"{topic}: {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")
            print(f"{attempt}: {dict(tokens_by_source)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
