from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.sampling import SamplingColumns, sample_tokens
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.sampling import SamplingRows, sample


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def columns_of(sampling: Sequence[DeviceSampling], positions: Sequence[int], device: torch.device) -> SamplingColumns:
    def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return SamplingColumns(
        seeds_R=column([s.seed for s in sampling], torch.int64),
        output_positions_R=column(list(positions), torch.int64),
        temperatures_R=column([s.temperature for s in sampling], torch.float32),
        top_ks_R=column([s.top_k for s in sampling], torch.int32),
        tails_R=column([1 - s.top_p for s in sampling], torch.float32),
        min_ps_R=column([s.min_p for s in sampling], torch.float32),
    )


def by_the_twin(logits: torch.Tensor, sampling: Sequence[DeviceSampling], positions: Sequence[int]) -> torch.Tensor:
    rows = SamplingRows(
        sampling=sampling,
        output_positions=np.array(positions, dtype=np.int64),
        num_prompt_tokens=np.ones(len(sampling), dtype=np.int64),
        token_rows_R=torch.arange(len(sampling), device=logits.device),
        tokens_XL=torch.zeros(len(sampling), 4, dtype=torch.int32, device=logits.device),
    )
    return sample(logits, rows)


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.3},
    {"temperature": 1.3, "top_k": 50, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.7, "min_p": 0.02, "top_k": 30, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 10_000_000},
]


@pytest.mark.parametrize(
    ("vocab_size", "repeats"),
    [(40, 1), (2100, 1), *(pytest.param(size, 20, marks=pytest.mark.gpu) for size in (32_000, 151_936))],
)
def test_tokens_match_the_twin(device: torch.device, dtype: torch.dtype, vocab_size: int, repeats: int) -> None:
    if device.type == "cpu" and vocab_size > 10_000:
        pytest.skip("takes minutes under the interpreter")
    sampling = [DeviceSampling(seed=7919 * i - 40, **setting) for i in range(repeats) for setting in SETTINGS]
    positions = [3 * i for i in range(len(sampling))]
    logits = (3 * torch.randn(len(sampling), vocab_size)).to(device, dtype)
    # The twin on the CPU, where equal logits have a fixed order.
    expected = by_the_twin(logits.cpu(), sampling, positions)

    token_ids = sample_tokens(logits, columns_of(sampling, positions, device))

    assert token_ids.tolist() == expected.tolist()


def test_equal_logits_are_cut_from_the_lowest_id(device: torch.device) -> None:
    settings = [(top_p, top_k) for top_p in (0.05, 0.5, 0.7, 0.9) for top_k in (0, 3, 6)]
    repeats = 2 if device.type == "cpu" else 50
    sampling = [
        DeviceSampling(seed=seed, temperature=1.0, top_p=top_p, top_k=top_k)
        for seed in range(repeats)
        for top_p, top_k in settings
    ]
    positions = list(range(len(sampling)))
    logits = torch.tensor([0.0, 1.0, 0.0, -1.0, 1.0, 0.0, -0.0, 1.0, float("-inf"), 0.0]).repeat(len(sampling), 1)

    token_ids = sample_tokens(logits.to(device), columns_of(sampling, positions, device))

    assert token_ids.tolist() == by_the_twin(logits, sampling, positions).tolist()


def test_greedy_rows_take_the_first_of_equals(device: torch.device) -> None:
    logits = torch.randn(3, 5000, device=device)
    logits[0, [4900, 7]] = 9.0
    logits[1] = float("-inf")
    logits[2, 4999] = 20.0

    assert sample_tokens(logits, None).tolist() == [7, 0, 4999]


def test_a_row_of_nan_gives_an_id_of_the_vocabulary(device: torch.device) -> None:
    assert sample_tokens(torch.full((1, 50), torch.nan, device=device), None).tolist() == [49]


def test_masked_tokens_are_never_chosen(device: torch.device) -> None:
    logits = torch.full((8, 100), float("-inf"), device=device)
    logits[:, [3, 60]] = 1.0
    sampling = [DeviceSampling(seed=i, temperature=1.0, top_p=0.999) for i in range(8)]

    token_ids = sample_tokens(logits, columns_of(sampling, range(8), device))

    assert set(token_ids.tolist()) == {3, 60}


def test_bad_inputs_are_refused() -> None:
    logits = torch.zeros(2, 8)
    columns = columns_of([DeviceSampling(seed=1)] * 2, [0, 1], torch.device("cpu"))
    for bad_logits, bad_columns in [
        (logits.double(), columns),
        (torch.zeros(8, 2).T, columns),
        (logits, replace(columns, seeds_R=columns.seeds_R.int())),
        (logits, replace(columns, tails_R=columns.tails_R[1:])),
        (logits, replace(columns, top_ks_R=columns.top_ks_R.long())),
    ]:
        with pytest.raises(ValueError, match="expected"):
            sample_tokens(bad_logits, bad_columns)
