"""Random plans of all kinds, whatever the state of the slots before them."""

import numpy as np

from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, StepPlan
from raydix.runtime.model.logit_rules.table import LOGIT_RULES
from raydix.runtime.model.steps.warm_up import CUTTING, GREEDY, asking_for_all

MAX_TOKENS, MAX_MODEL_LEN = 8192, 16_384
BATCHES = (1, 2, 3, 7, 17, 33, 64, 100, 130)
SAMPLINGS = (GREEDY, CUTTING, asking_for_all(LOGIT_RULES))


def random_plan(rng: np.random.Generator, step: int) -> StepPlan:
    """Requests of any length that compute a prompt, a chunk or an extension of it, or decode."""
    lengths = rng.choice([1, 1, 2, 17, 300, int(rng.integers(1, 5001))], rng.choice(BATCHES))
    # Decodes come on top of what prompts may have.
    of_prompts = np.where(lengths == 1, 0, lengths)
    kept = np.cumsum(of_prompts) <= MAX_TOKENS
    lengths, num_left = lengths[kept], MAX_TOKENS - int(of_prompts[kept].sum())
    if num_left > 1 and rng.integers(3) == 0:
        lengths = np.append(lengths, num_left)
    before = np.exp(rng.uniform(0, np.log(MAX_MODEL_LEN), len(lengths))).astype(np.int64)
    before = np.minimum(before, MAX_MODEL_LEN - lengths - 1)
    ends = before + lengths
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(np.zeros(end)),
            num_prompt_tokens=max(int(end) - int(rng.integers(2)), 1),
            sampling=SAMPLINGS[rng.integers(len(SAMPLINGS))],
        )
        for slot, end in enumerate(ends.tolist())
    )
    return StepPlan(
        step=step,
        added=added,
        row_slots=int32_array(range(len(ends))),
        row_starts=int32_array(before),
        row_num_tokens=int32_array(lengths),
        row_write_starts=int32_array(before),
        row_output_positions=int32_array(rng.integers(-1, 2, len(ends))),
        row_loads=int32_array([-1] * len(ends)),
    )
