from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.sampling import SamplingRows, sample

VOCAB = 23


def make_rows(
    sampling: Sequence[DeviceSampling],
    positions: Sequence[int],
    histories: Sequence[tuple[list[int], list[int]]] | None = None,
) -> SamplingRows:
    """`histories`: (prompt, output) of each row; the output has as many tokens as the row's output position."""
    histories = histories or [([1, 2], [3] * position) for position in positions]
    tokens = torch.full((len(sampling), 40), VOCAB - 1, dtype=torch.int32)
    for row, (prompt, output) in enumerate(histories):
        tokens[row, : len(prompt) + len(output)] = torch.tensor(prompt + output)
    return SamplingRows(
        sampling=sampling,
        output_positions=np.array(positions),
        num_prompt_tokens=np.array([len(prompt) for prompt, _ in histories]),
        token_rows_R=torch.arange(len(sampling)),
        tokens_XL=tokens,
    )


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def penalised(logits: list[float], sampling: DeviceSampling, prompt: list[int], output: list[int]) -> list[float]:
    """The definition, one token at a time."""
    counts = Counter(output)
    result = []
    for token_id, logit in enumerate(logits):
        value = logit
        if token_id in prompt or token_id in output:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        value -= sampling.frequency_penalty * counts[token_id]
        value -= sampling.presence_penalty * (counts[token_id] > 0)
        result.append(value)
    return result


token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    histories=st.lists(st.tuples(token_lists.filter(len), token_lists), min_size=1, max_size=5),
    penalties=st.lists(
        st.tuples(st.sampled_from([1.0, 0.5, 3.0]), st.sampled_from([0.0, 1.5, -1.0]), st.sampled_from([0.0, 0.7])),
        min_size=5,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_penalties_follow_their_definition(
    histories: list[tuple[list[int], list[int]]], penalties: list[tuple[float, float, float]], seed: int
) -> None:
    logits = random_logits(len(histories), seed)
    sampling = [
        DeviceSampling(seed=0, repetition_penalty=r, presence_penalty=p, frequency_penalty=f)
        for (r, p, f), _ in zip(penalties, histories, strict=False)
    ]

    token_ids = sample(logits, make_rows(sampling, [len(output) for _, output in histories], histories)).tolist()

    for row, (prompt, output) in enumerate(histories):
        expected = penalised(logits[row].tolist(), sampling[row], prompt, output)
        assert expected[token_ids[row]] == pytest.approx(max(expected), abs=1e-5)


def test_noise_depends_on_seed_and_position_alone() -> None:
    logits = random_logits(1).expand(6, -1)
    rows = [(5, 0), (5, 1), (6, 0), (5, 0), (2**63 + 5, 0), (0, 3)]
    sampling = [DeviceSampling(seed=seed, temperature=3.0) for seed, _ in rows]
    together = sample(logits, make_rows(sampling, [position for _, position in rows])).tolist()

    alone = [sample(logits[:1], make_rows([sampling[i]], [position])).item() for i, (_, position) in enumerate(rows)]

    assert together == alone
    assert together[0] == together[3]
    assert len(set(together)) > 2


def test_known_samples_stay_the_same_between_releases() -> None:
    sampling = [DeviceSampling(seed=seed, temperature=1.0) for seed in range(8)]

    token_ids = sample(torch.zeros(8, VOCAB), make_rows(sampling, range(8))).tolist()

    assert token_ids == [1, 18, 20, 22, 2, 11, 15, 7]


def frequencies(logits: torch.Tensor, sampling: DeviceSampling, num_samples: int) -> torch.Tensor:
    rows = make_rows([sampling] * num_samples, range(num_samples), [([1], [])] * num_samples)
    token_ids = sample(logits.expand(num_samples, -1), rows)
    return torch.bincount(token_ids, minlength=VOCAB) / num_samples


def test_samples_are_distributed_as_the_softmax() -> None:
    logits = random_logits(1)
    num_samples = 20_000

    observed = frequencies(logits, DeviceSampling(seed=3, temperature=1.7), num_samples)

    expected = (logits[0] / 1.7).softmax(-1)
    chi_square = (num_samples * (observed - expected) ** 2 / expected).sum()
    # 99.9th percentile of the chi-square distribution with 22 degrees of freedom.
    assert chi_square < 48.3


def test_positions_of_one_seed_are_independent_of_those_of_the_next() -> None:
    """Neither rows nor neighbouring positions share noise: pairs of equal tokens are as rare as chance has them."""
    logits = torch.zeros(4000, VOCAB)
    first, second = (
        sample(logits, make_rows([DeviceSampling(seed=s, temperature=1.0)] * 4000, range(4000), [([1], [])] * 4000))
        for s in (7, 8)
    )

    assert (first == second).float().mean().item() == pytest.approx(1 / VOCAB, abs=0.012)
    assert (first[1:] == second[:-1]).float().mean().item() == pytest.approx(1 / VOCAB, abs=0.012)
    assert (first[1:] == first[:-1]).float().mean().item() == pytest.approx(1 / VOCAB, abs=0.012)


def test_top_k_keeps_the_k_most_likely() -> None:
    logits = random_logits(1)

    observed = frequencies(logits, DeviceSampling(seed=1, temperature=5.0, top_k=4), 500)

    assert set(observed.nonzero().flatten().tolist()) == set(logits[0].topk(4).indices.tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1] + [0.0] * (VOCAB - 4))

    for top_p, kept in ((0.65, 2), (0.75, 3), (0.05, 1), (1.0, 4)):
        observed = frequencies(probabilities.log()[None], DeviceSampling(seed=2, temperature=1.0, top_p=top_p), 500)
        assert observed.nonzero().flatten().tolist() == list(range(kept))


def test_min_p_drops_tokens_below_its_share_of_the_most_likely() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05] + [0.0] * (VOCAB - 4))

    observed = frequencies(probabilities.log()[None], DeviceSampling(seed=2, temperature=1.0, min_p=0.25), 500)

    assert observed.nonzero().flatten().tolist() == [0, 1, 2]


def test_top_k_of_one_row_leaves_other_rows_alone() -> None:
    logits = torch.zeros(300, VOCAB)
    sampling = [DeviceSampling(seed=i, temperature=1.0, top_k=1 if i == 0 else 0) for i in range(300)]

    token_ids = sample(logits, make_rows(sampling, [0] * 300, [([1], [])] * 300))

    assert set(token_ids[1:].tolist()) == set(range(VOCAB))


def test_masked_tokens_appear_only_after_min_tokens() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 9], logits[:, 4], logits[:, 2] = 5.0, 4.0, 3.0
    sampling = [DeviceSampling(seed=0, min_tokens=3, masked_until_min_tokens=(9, 4))] * 2

    assert sample(logits, make_rows(sampling, [2, 3])).tolist() == [2, 9]


def test_sampling_leaves_the_raw_logits_unchanged() -> None:
    logits = random_logits(2)
    before = logits.clone()
    sampling = [
        DeviceSampling(seed=0, min_tokens=3, masked_until_min_tokens=(1,)),
        DeviceSampling(seed=0, temperature=1.0, presence_penalty=1.0, top_k=3),
    ]

    sample(logits, make_rows(sampling, [0, 2]))

    assert torch.equal(logits, before)
