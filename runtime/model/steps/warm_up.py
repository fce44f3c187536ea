"""Which steps a runner tries before it serves, so that every kernel is compiled."""

from collections.abc import Iterator
from dataclasses import replace

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.table import LogitRules

GREEDY = DeviceSampling(seed=0)
CUTTING = DeviceSampling(seed=0, temperature=1.0, top_k=50, top_p=0.9, min_p=0.001)


def asking_for_all(rules: LogitRules) -> DeviceSampling:
    """All that a row may ask of sampling at once."""
    sampling = replace(CUTTING, num_logprobs=20, num_prompt_logprobs=20)
    for rule in rules:
        sampling = rule.example(sampling)
    return sampling


def warm_up_rows(longest: int, max_model_len: int) -> Iterator[tuple[int, int]]:
    """Tokens and first position of rows of all kinds, of up to `longest` tokens."""
    sizes = {size - less for size in _powers_of_two(16, longest) for less in (0, 1)} | {longest}
    for num_tokens in sorted(sizes):
        yield num_tokens, 0

    for context in _powers_of_two(1, max_model_len):
        # Every rank of a step group tries them in the same order.
        for num_tokens in sorted({1, min(16, context)}):
            yield num_tokens, context - num_tokens


def _powers_of_two(start: int, stop: int) -> list[int]:
    return [
        1 << bit for bit in range(start.bit_length() - 1, stop.bit_length()) if 1 << bit <= stop
    ]
