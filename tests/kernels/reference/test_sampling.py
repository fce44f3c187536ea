"""What the samplers do, by statistics and by definition."""

import numpy as np
import pytest
import torch

from raydix.ids import NO_TOKEN
from raydix.kernels.reference.sampling import _uniform, gumbel_noise, sample_cut, sample_whole
from raydix.kernels.sampling.columns import as_sampling_columns
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.slots.slot_sampling import SlotSampling
from tests.sampled_tokens import sample

VOCAB = 23


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_noise_depends_on_seed_and_position_alone() -> None:
    logits = random_logits(1).expand(6, -1)
    rows = [(5, 0), (5, 1), (6, 0), (5, 0), (2**63 + 5, 0), (0, 3)]
    sampling = [DeviceSampling(seed=seed, temperature=3.0) for seed, _ in rows]
    together = sample(logits, sampling, [position for _, position in rows])

    alone = [
        sample(logits[:1], [sampling[i]], [position])[0] for i, (_, position) in enumerate(rows)
    ]

    assert together == alone
    assert together[0] == together[3]
    assert len(set(together)) > 2


def test_known_samples_stay_the_same_between_releases() -> None:
    sampling = [DeviceSampling(seed=seed, temperature=1.0) for seed in range(8)]

    token_ids = sample(torch.zeros(8, VOCAB), sampling, range(8))

    assert token_ids == [1, 18, 20, 22, 2, 11, 15, 7]


def frequencies(logits: torch.Tensor, sampling: DeviceSampling, num_samples: int) -> torch.Tensor:
    slots = SlotSampling(1)
    slots.put(0, sampling)
    columns = slots.columns(np.zeros(num_samples, dtype=np.int64), np.arange(num_samples))
    rows = as_sampling_columns({name: torch.from_numpy(column) for name, column in columns.items()})
    token_ids = sample_whole(logits.expand(num_samples, -1), rows)
    sample_cut(logits.expand(num_samples, -1), rows, token_ids)
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
    """Neither rows nor neighbouring positions share noise: equal tokens pair up by chance."""
    logits = torch.zeros(4000, VOCAB)
    first, second = (
        torch.tensor(sample(logits, [DeviceSampling(seed=s, temperature=1.0)] * 4000, range(4000)))
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
        observed = frequencies(
            probabilities.log()[None], DeviceSampling(seed=2, temperature=1.0, top_p=top_p), 500
        )
        assert observed.nonzero().flatten().tolist() == list(range(kept))


def test_min_p_drops_tokens_below_its_share_of_the_most_likely() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05] + [0.0] * (VOCAB - 4))

    observed = frequencies(
        probabilities.log()[None], DeviceSampling(seed=2, temperature=1.0, min_p=0.25), 500
    )

    assert observed.nonzero().flatten().tolist() == [0, 1, 2]


def test_top_k_of_one_row_leaves_other_rows_alone() -> None:
    logits = torch.zeros(300, VOCAB)
    sampling = [
        DeviceSampling(seed=i, temperature=1.0, top_k=1 if i == 0 else 0) for i in range(300)
    ]

    token_ids = sample(logits, sampling, [0] * 300)

    assert set(token_ids[1:]) == set(range(VOCAB))


def test_equals_at_the_edge_of_top_p_share_what_is_left() -> None:
    # Of five equal tokens top-p 0.5 keeps three at 1/5 each, which are drawn: all five are as
    # likely as before.
    logits = torch.full((1, VOCAB), -30.0)
    logits[:, 3], logits[:, 5:10] = 1.0, 0.0
    weight = np.exp(-1.0)
    num_samples = 20_000

    observed = frequencies(logits, DeviceSampling(seed=4, temperature=1.0, top_p=0.7), num_samples)

    num_kept = np.ceil((0.7 * (1 + 5 * weight) - 1) / weight)
    assert observed.nonzero().flatten().tolist() == [3, 5, 6, 7, 8, 9]
    assert observed[3].item() == pytest.approx(1 / (1 + num_kept * weight), abs=0.01)
    assert observed[5:10].tolist() == pytest.approx(
        [num_kept * weight / 5 / (1 + num_kept * weight)] * 5, abs=0.01
    )


def test_noise_is_finite_at_both_ends_of_the_bits() -> None:
    uniform = _uniform(torch.tensor([0, 2**53 - 1]))

    assert 0 < uniform[0] < uniform[1] < 1
    assert gumbel_noise(torch.tensor([5, -9]), 4000).isfinite().all()


def test_temperatures_that_float32_cannot_divide_by_are_greedy() -> None:
    logits = torch.tensor([[0.0, 1e-6, 0.0]])

    for temperature in (9e-6, 1e-40, 5e-324):
        sampling = DeviceSampling(seed=7, temperature=temperature, top_p=0.9, top_k=2)
        assert sample(logits.expand(20, -1), [sampling] * 20, range(20)) == [1] * 20


def test_a_row_that_is_not_finite_has_no_token() -> None:
    logits = torch.zeros(8, VOCAB)
    logits[:, 9] = 5.0
    logits[0:2, 3], logits[2:4, 3], logits[4:6] = torch.nan, torch.inf, -torch.inf
    logits[6:8, :9] = -torch.inf
    sampling = [DeviceSampling(seed=1), DeviceSampling(seed=1, temperature=0.1, top_p=0.5)] * 4
    assert sample(logits, sampling, [0] * 8) == [NO_TOKEN] * 6 + [9] * 2


def test_an_adjusted_row_that_is_not_finite_has_no_token() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = torch.nan
    sampling = [DeviceSampling(seed=1, repetition_penalty=2.0)] * 2
    assert sample(logits, sampling, [0] * 2) == [NO_TOKEN, 0]
