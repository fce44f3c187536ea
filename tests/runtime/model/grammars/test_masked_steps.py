"""A runner's steps follow grammars though nobody reads a token before the last of them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import GrammarChanges
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.grammars.matcher import Matcher, Words
from raydix.runtime.model.grammars.slot_matchers import SlotMatchers
from tests.runtime.model.steps.plan_driver import PlanDriver
from tests.runtime.model.steps.uncaptured_steps import without_graphs

KEY = GrammarKey(b"follows")
VOCAB = 64
"""Fewer than any test's model has."""
NUM_TOKENS = 12


def followers(token_id: int) -> list[int]:
    """The two tokens that may follow one."""
    return [(token_id * 7 + 3) % VOCAB, (token_id * 5 + 1) % VOCAB]


class Follows:
    """Lets two tokens come, by the last one; 1 and 4 at the beginning."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._allowed = followers(token_ids[-1]) if token_ids else [1, 4]

    def advance(self, token_id: int) -> None:
        self._allowed = followers(token_id)

    def fill(self, words_W: Words) -> None:
        words_W.fill(0)
        for token_id in self._allowed:
            words_W[token_id // 32] |= 1 << token_id % 32 if token_id % 32 < 31 else -(1 << 31)


class Library:
    def change(self, changes: GrammarChanges) -> None:
        pass

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> Follows:
        return Follows(token_ids)

    def fill(self, matchers: Sequence[Matcher], words_MW: Words) -> None:
        for matcher, words_W in zip(matchers, words_MW, strict=True):
            assert isinstance(matcher, Follows)
            matcher.fill(words_W)


def driver_on(device: str, checkpoint: Path, *, is_captured: bool) -> PlanDriver:
    model = load_model(checkpoint, device=torch.device(device), dtype=torch.float32)
    driver = PlanDriver(model, device=torch.device(device))
    matchers = driver.runner._matchers
    assert isinstance(matchers, SlotMatchers)
    matchers._library = Library()
    if is_captured and device == "cuda":
        driver.runner.capture_graphs()
    elif is_captured:
        without_graphs(driver.runner)
    return driver


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_ahead_follow_each_rows_grammar_and_leave_others_alone(
    device: str, is_captured: bool, temperature: float, small_checkpoint: Path
) -> None:
    free = DeviceSampling(seed=3, temperature=temperature)
    bound = DeviceSampling(seed=3, temperature=temperature, grammar=KEY)
    prompts = [[5, 6, 7 + slot] for slot in range(6)]
    alone = driver_on(device, small_checkpoint, is_captured=is_captured)
    expected = alone.generate(
        [alone.add(slot, prompt, sampling=free) for slot, prompt in enumerate(prompts)], NUM_TOKENS
    )

    driver = driver_on(device, small_checkpoint, is_captured=is_captured)
    tokens = driver.generate(
        [
            driver.add(slot, prompt, sampling=bound if slot % 2 else free)
            for slot, prompt in enumerate(prompts)
        ],
        NUM_TOKENS,
    )

    assert tokens[::2] == expected[::2]
    for own in tokens[1::2]:
        assert own[0] in (1, 4)
        assert all(after in followers(before) for before, after in pairwise(own))
    # One that runs again goes on as if it had not stopped.
    again = driver.add(7, [*prompts[1], *tokens[1][:5]], num_prompt_tokens=3, sampling=bound)
    assert driver.generate([again], NUM_TOKENS - 5) == [tokens[1][5:]]
