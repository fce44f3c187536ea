"""Penalties and masks, by their definitions."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.ids import NO_TOKEN
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.sampling.adjusted_sampling import BLOCK_ROWS
from tests.sampled_tokens import sample

VOCAB = 23


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def penalised(
    logits: list[float], sampling: DeviceSampling, prompt: list[int], output: list[int]
) -> list[float]:
    """The definition, one token at a time."""
    counts = Counter(output)
    biases = dict(zip(sampling.biased_token_ids, sampling.biases, strict=True))
    result = []
    for token_id, logit in enumerate(logits):
        value = logit + biases.get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            value = (
                value / sampling.repetition_penalty
                if value > 0
                else value * sampling.repetition_penalty
            )

        value -= sampling.frequency_penalty * counts[token_id]
        value -= sampling.presence_penalty * (counts[token_id] > 0)
        result.append(value)
    return result


token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=12)
bias_dicts = st.dictionaries(
    st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 0.25, 2.0, 100.0]), max_size=6
)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    histories=st.lists(st.tuples(token_lists.filter(len), token_lists), min_size=1, max_size=5),
    penalties=st.lists(
        st.tuples(
            st.sampled_from([1.0, 0.5, 3.0]),
            st.sampled_from([0.0, 1.5, -1.0]),
            st.sampled_from([0.0, 0.7]),
            bias_dicts,
        ),
        min_size=5,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_biases_and_then_penalties_follow_their_definition(
    histories: list[tuple[list[int], list[int]]],
    penalties: list[tuple[float, float, float, dict[int, float]]],
    seed: int,
) -> None:
    logits = random_logits(len(histories), seed)
    sampling = [
        DeviceSampling(
            seed=0,
            repetition_penalty=r,
            presence_penalty=p,
            frequency_penalty=f,
            biased_token_ids=tuple(biases),
            biases=tuple(biases.values()),
        )
        for (r, p, f, biases), _ in zip(penalties, histories, strict=False)
    ]

    token_ids = sample(logits, sampling, [len(output) for _, output in histories], histories)

    for row, (prompt, output) in enumerate(histories):
        expected = penalised(logits[row].tolist(), sampling[row], prompt, output)
        assert expected[token_ids[row]] == pytest.approx(max(expected), abs=1e-5)


def test_masked_tokens_appear_only_after_min_tokens() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 9], logits[:, 4], logits[:, 2] = 5.0, 4.0, 3.0
    sampling = [DeviceSampling(seed=0, min_tokens=3, masked_until_min_tokens=(9, 4))] * 2

    assert sample(logits, sampling, [2, 3]) == [2, 9]


def test_sampling_leaves_the_raw_logits_unchanged() -> None:
    logits = random_logits(2)
    before = logits.clone()
    sampling = [
        DeviceSampling(seed=0, min_tokens=3, masked_until_min_tokens=(1,)),
        DeviceSampling(seed=0, temperature=1.0, presence_penalty=1.0, top_k=3),
    ]

    sample(logits, sampling, [0, 2])

    assert torch.equal(logits, before)


def test_a_bias_does_not_lift_the_mask_of_min_tokens() -> None:
    logits = torch.zeros(2, VOCAB)
    sampling = DeviceSampling(
        seed=0,
        min_tokens=3,
        masked_until_min_tokens=(9,),
        biased_token_ids=(9, 4),
        biases=(100.0, 1.0),
    )

    assert sample(logits, [sampling] * 2, [2, 3]) == [4, 9]


def test_penalties_scale_biases_that_were_added_before() -> None:
    sampling = DeviceSampling(
        seed=0, repetition_penalty=3.0, biased_token_ids=(4, 5), biases=(2.0, 1.0)
    )

    assert sample(torch.zeros(1, VOCAB), [sampling], [0], [([4], [])]) == [5]


def test_three_hundred_banned_tokens_are_never_sampled() -> None:
    logits = torch.zeros(40, 400)
    banned = tuple(range(300))
    sampling = [
        DeviceSampling(
            seed=i, temperature=1.0, top_p=0.99, biased_token_ids=banned, biases=(-100.0,) * 300
        )
        for i in range(40)
    ]

    token_ids = sample(logits, sampling, [0] * 40)

    assert min(token_ids) >= 300
    assert len(set(token_ids)) > 20


def test_equal_biases_of_all_tokens_change_nothing() -> None:
    logits = random_logits(8)
    plain = [DeviceSampling(seed=i, temperature=1.0, top_k=9) for i in range(8)]
    all_ids = tuple(range(VOCAB))
    banned = [replace(each, biased_token_ids=all_ids, biases=(-64.0,) * VOCAB) for each in plain]

    assert sample(logits, banned, [0] * 8) == sample(logits, plain, [0] * 8)


CHOICES: list[dict[str, float]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.1},
]


@pytest.mark.parametrize("choice", CHOICES)
def test_biases_of_all_tokens_leave_a_token_and_masks_of_all_leave_none(
    choice: dict[str, float],
) -> None:
    all_ids = tuple(range(VOCAB))
    masked = DeviceSampling(seed=0, min_tokens=1, masked_until_min_tokens=all_ids, **choice)
    banned = DeviceSampling(seed=0, biased_token_ids=all_ids, biases=(-100.0,) * VOCAB, **choice)

    nothing, token_id = sample(random_logits(2), [masked, banned], [0, 0])

    assert nothing == NO_TOKEN
    assert 0 <= token_id < VOCAB


@pytest.mark.parametrize("choice", CHOICES)
def test_a_bias_lifts_neither_an_impossible_token_nor_one_that_is_no_number(
    choice: dict[str, float],
) -> None:
    logits = random_logits(1)
    logits[0, 3], logits[0, 4] = float("-inf"), float("nan")
    biased = DeviceSampling(seed=0, biased_token_ids=(3, 4), biases=(100.0, 100.0), **choice)

    assert sample(logits, [biased], [0])[0] not in (3, 4)


def test_biased_tokens_outside_of_the_vocabulary_need_no_bias() -> None:
    sampling = DeviceSampling(
        seed=0, biased_token_ids=(VOCAB, 10**6, 4), biases=(100.0, 100.0, 1.0)
    )

    assert sample(torch.zeros(1, VOCAB), [sampling], [0]) == [4]


def test_stop_ids_outside_of_the_vocabulary_need_no_mask() -> None:
    sampling = DeviceSampling(seed=0, min_tokens=3, masked_until_min_tokens=(VOCAB, 10**6, 9))
    logits = torch.zeros(1, VOCAB)
    logits[:, 9], logits[:, 4] = 5.0, 4.0

    assert sample(logits, [sampling], [0]) == [4]


def test_more_adjusted_rows_than_a_block_holds_are_sampled_each_as_alone() -> None:
    num_rows = 2 * BLOCK_ROWS + 3
    logits = random_logits(num_rows)
    sampling = [
        DeviceSampling(seed=i, temperature=1.0, presence_penalty=i / 50) for i in range(num_rows)
    ]
    histories = [([1, 2], [i % VOCAB] * (i % 5)) for i in range(num_rows)]
    positions = [len(output) for _, output in histories]

    together = sample(logits, sampling, positions, histories)

    alone = [
        sample(logits[i : i + 1], sampling[i : i + 1], positions[i : i + 1], histories[i : i + 1])[
            0
        ]
        for i in range(num_rows)
    ]
    assert together == alone
