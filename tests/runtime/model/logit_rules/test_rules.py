"""What holds for every logit rule, and a rule that this test alone has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raydix.ids import NO_TOKEN
from raydix.kernels.ops import ReferenceOps
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.grammars.library import ReadGrammars
from raydix.runtime.model.grammars.slot_matchers import SlotMatchers
from raydix.runtime.model.logit_rules.grammar_mask import GrammarMask
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens, LogitRule
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.sampling.adjusted_sampling import BLOCK_ROWS
from raydix.runtime.model.slots.slot_sampling import SlotSampling
from raydix.runtime.model.staging.columns import Column, Columns
from raydix.runtime.model.staging.pinned_copies import PinnedCopies
from raydix.runtime.model.steps.warm_up import asking_for_all
from tests.runtime.model.steps.plan_driver import PlanDriver
from tests.runtime.model.steps.uncaptured_steps import without_graphs
from tests.sampled_tokens import sample

VOCAB = 23
GREEDY = DeviceSampling(seed=0)
FORBIDDING = DeviceSampling(seed=7)
"""What asks `ForbidTokens`: it goes by the seed, as no parameter is made for it."""


class ForbidTokens:
    """Forbids some tokens among the first three that are sampled."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = np.array(token_ids)

    def read(self, sampling: DeviceSampling) -> Asked[Column] | None:
        return Asked(self._token_ids, before=3) if sampling.seed == FORBIDDING.seed else None

    def columns(self, block: Block[Column]) -> Columns | None:
        if not block.asked:
            return None
        is_forbidden_BV = np.zeros((block.num_rows, block.vocab_size), dtype=np.int32)
        for row, token_ids in block.asked.items():
            is_forbidden_BV[row, token_ids] = 1
        return {"is_forbidden_BV": is_forbidden_BV}

    def apply(
        self, logits_BV: torch.Tensor, columns: Mapping[str, torch.Tensor], tokens: BlockTokens
    ) -> torch.Tensor:
        return logits_BV.masked_fill_(columns["is_forbidden_BV"] > 0, float("-inf"))

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        return replace(sampling, seed=FORBIDDING.seed)


GRAMMAR_MASK = GrammarMask(SlotMatchers(ReadGrammars()), ReferenceOps())
ALL_RULES: LogitRules = (*LOGIT_RULES, ForbidTokens([4, 9]), GRAMMAR_MASK)
EACH_RULE = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: type(rule).__name__)


def block_of(slots: list[int], asked: Mapping[int, Any]) -> Block[Any]:
    """A block of rows that sample the first token of their output."""
    return Block(
        num_rows=len(slots),
        vocab_size=VOCAB,
        slots=np.array(slots),
        positions=np.zeros(len(slots), dtype=np.int64),
        asked=asked,
    )


def falling_logits(num_rows: int) -> torch.Tensor:
    """The lower its id, the likelier a token."""
    return -torch.arange(float(VOCAB)).repeat(num_rows, 1)


def test_a_rule_of_ones_own_changes_its_rows_while_it_concerns_them_and_no_others() -> None:
    rules = (*LOGIT_RULES, ForbidTokens([0, 1, 3]))
    sampling = [FORBIDDING, GREEDY, FORBIDDING, FORBIDDING]

    assert sample(falling_logits(4), sampling, [0, 0, 2, 3], rules=rules) == [2, 0, 2, 0]


def test_a_rule_of_ones_own_goes_together_with_the_others() -> None:
    rules = (*LOGIT_RULES, ForbidTokens([0, 1]))
    sampling = DeviceSampling(
        seed=FORBIDDING.seed,
        min_tokens=1,
        masked_until_min_tokens=(2,),
        biased_token_ids=(1, 9),
        biases=(100.0, 8.5),
        presence_penalty=5.0,
    )

    # Tokens 0 and 1 are forbidden, 2 is masked at first, 3 is penalised, and 9 is lifted over 4.
    assert sample(falling_logits(1), [sampling], [0], rules=rules) == [9]
    assert sample(falling_logits(1), [sampling], [1], [([5], [9])], rules=rules) == [2]


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_runner_samples_by_a_rule_of_ones_own(
    small_model: LoadedModel, is_captured: bool
) -> None:
    prompt = [5, 6, 7, 8]
    free = PlanDriver(small_model)
    expected = free.generate([free.add(0, prompt)], 4)[0]
    driver = PlanDriver(small_model, rules=(*LOGIT_RULES, ForbidTokens(expected[:1])))
    if is_captured:
        without_graphs(driver.runner)

    requests = [driver.add(0, prompt, sampling=FORBIDDING), driver.add(1, prompt)]
    tokens = driver.generate(requests, 4)

    assert expected[0] not in tokens[0][:3]
    assert tokens[1] == expected


class CountedOperations(TorchDispatchMode):
    """Counts what would be launches on a GPU, views among them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return operation(*args, **(kwargs or {}))


def operations_of_a_step(model: LoadedModel, rules: LogitRules) -> int:
    """The operations of a step of two requests; a rule concerns a third one, outside the step."""
    driver = PlanDriver(model, rules=rules)
    requests = [driver.add(slot, [5, 6, 7 + slot]) for slot in range(2)]
    driver.generate(requests, 1)
    driver.add(2, [5, 6], sampling=DeviceSampling(seed=7, presence_penalty=1.0))
    with CountedOperations() as operations:
        driver.generate(requests, 1)
    return operations.count


def test_rules_that_concern_no_row_of_a_step_add_no_operation(small_model: LoadedModel) -> None:
    assert operations_of_a_step(small_model, ALL_RULES) == operations_of_a_step(small_model, ())


def test_all_blocks_and_rules_of_a_step_take_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    to_device = PinnedCopies.to_device

    def counted(self: PinnedCopies, *tables: Columns) -> list[dict[str, torch.Tensor]]:
        copies.append(len(tables))
        return to_device(self, *tables)

    monkeypatch.setattr(PinnedCopies, "to_device", counted)
    sampling = [asking_for_all(ALL_RULES)] * (BLOCK_ROWS + 1)

    sample(falling_logits(BLOCK_ROWS + 1), sampling, [0] * (BLOCK_ROWS + 1), rules=ALL_RULES)

    assert len(copies) == 1


@EACH_RULE
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_rule_hides_a_number_that_is_not_finite(
    rule: LogitRule[Any], bad: float, temperature: float
) -> None:
    asking = replace(rule.example(GREEDY), temperature=temperature)
    logits = falling_logits(VOCAB + 1)
    logits[range(VOCAB), range(VOCAB)] = bad

    token_ids = sample(logits, [asking] * (VOCAB + 1), [0] * (VOCAB + 1), rules=ALL_RULES)

    assert token_ids[:VOCAB] == [NO_TOKEN] * VOCAB
    assert token_ids[VOCAB] != NO_TOKEN


@EACH_RULE
def test_a_plain_request_asks_nothing_of_a_rule(rule: LogitRule[Any]) -> None:
    assert rule.read(GREEDY) is None


@EACH_RULE
def test_rows_that_a_rule_does_not_concern_keep_their_logits(rule: LogitRule[Any]) -> None:
    asked = rule.read(rule.example(GREEDY))
    block = block_of([4, 2, 0], {1: asked.kept} if asked else {})
    columns = rule.columns(block)
    assert columns is not None
    logits = falling_logits(3)
    [arrived] = PinnedCopies(torch.device("cpu")).to_device(columns)
    changed = []
    # A rule may concern every other position alone.
    for num_tokens in (2, 3):
        tokens = BlockTokens(
            tokens_XL=torch.zeros((5, 8), dtype=torch.int32),
            slots_B=torch.tensor([4, 2, 0]),
            num_prompt_tokens_B=torch.tensor([1, 1, 1]),
            num_tokens_B=torch.tensor([num_tokens] * 3),
            max_tokens=num_tokens,
        )
        changed.append(rule.apply(logits.clone(), arrived, tokens))

    for each in changed:
        assert torch.equal(each[[0, 2]], logits[[0, 2]])
    assert all(torch.equal(each[1], logits[1]) for each in changed) is (asked is None)


def test_warm_up_tries_every_rule_with_the_first_token() -> None:
    slots = SlotSampling(1, ALL_RULES)
    slots.put(0, asking_for_all(ALL_RULES))

    blocks = [
        (rule, block_of([0], asked)) for rule, asked in slots.asked(np.array([0]), np.array([0]))
    ]

    assert [rule for rule, block in blocks if rule.columns(block) is None] == []
