"""The samplers against their twins, which run on the CPU in float32."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from raydix.ids import NO_TOKEN
from raydix.kernels.reference import sampling as reference
from raydix.kernels.sampling import cut_search
from raydix.kernels.sampling.columns import SamplingColumns, as_sampling_columns
from raydix.kernels.sampling.sampler import sample_cut, sample_whole
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.slots.slot_sampling import SlotSampling

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
    {"temperature": 0.00002},
    {"temperature": 1.0, "top_p": 1e-40},
    {"temperature": 1e5, "top_p": 0.999999},
    {"temperature": 1.0, "top_k": 3000, "top_p": 0.9},
]
GPU_SHAPES = [
    (1, 1),
    (3, 2),
    (256, 17),
    (31, 2047),
    (32, 2048),
    (33, 2049),
    (1, 32_000),
    (128, 32_000),
    (65, 50_257),
    (1, 151_936),
    (128, 151_937),
    (256, 151_936),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def columns_of(
    sampling: Sequence[DeviceSampling], positions: Sequence[int], device: torch.device
) -> SamplingColumns:
    slots = SlotSampling(len(sampling))
    for slot, each in enumerate(sampling):
        slots.put(slot, each)
    columns = slots.columns(np.arange(len(sampling)), np.array(positions, dtype=np.int64))
    return as_sampling_columns(
        {name: torch.from_numpy(column).to(device) for name, column in columns.items()}
    )


def by_the_kernels(logits: torch.Tensor, columns: SamplingColumns) -> list[int]:
    token_ids = sample_whole(logits, columns)
    sample_cut(logits, columns, token_ids)
    return token_ids.tolist()


def by_the_twins(logits: torch.Tensor, columns: SamplingColumns) -> list[int]:
    token_ids = reference.sample_whole(logits, columns)
    reference.sample_cut(logits, columns, token_ids)
    return token_ids.tolist()


def compare(
    logits: torch.Tensor,
    sampling: Sequence[DeviceSampling],
    positions: Sequence[int],
    device: torch.device,
) -> int:
    """The number of rows whose tokens differ: one in some thousands may, where rounding decides."""
    tokens = by_the_kernels(logits.to(device), columns_of(sampling, positions, device))
    expected = by_the_twins(logits, columns_of(sampling, positions, torch.device("cpu")))
    return sum(token != other for token, other in zip(tokens, expected, strict=True))


def mixed(num_rows: int) -> list[DeviceSampling]:
    settings = itertools.cycle(SETTINGS)
    return [DeviceSampling(seed=7919 * i - 40, **next(settings)) for i in range(num_rows)]


def awkward_logits(num_rows: int, vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Logits of other spreads by row; some with many equals, masks, NaN or infinities."""
    logits = (
        torch.randn(num_rows, vocab_size)
        * torch.tensor([3.0, 0.2, 8.0])[torch.arange(num_rows) % 3, None]
    )

    for row in range(num_rows):
        match row % 7:
            case 1:
                logits[row] = logits[row].round()
            case 2:
                logits[row, torch.rand(vocab_size) < 0.5] = float("-inf")
            case 3:
                logits[row, torch.rand(vocab_size) < 0.1] = float("nan")
            case 4:
                logits[row, vocab_size // 3 :] = 0.0
            case 5:
                logits[row, vocab_size // 2] = float("inf")
    if num_rows > 20:
        logits[19], logits[20] = float("nan"), float("-inf")
    return logits.to(dtype)


@pytest.mark.parametrize(
    ("vocab_size", "logits_dtype"),
    [(1, torch.bfloat16), (40, torch.float32), (2100, torch.bfloat16)],
)
def test_tokens_of_a_mixed_batch_match_the_twins(
    device: torch.device, vocab_size: int, logits_dtype: torch.dtype
) -> None:
    sampling = mixed(len(SETTINGS))
    logits = awkward_logits(len(sampling), vocab_size, logits_dtype)

    assert compare(logits, sampling, [3 * i for i in range(len(sampling))], device) == 0


@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_depth", [96, 1])
def test_rows_of_many_groups_match_the_twins_whether_or_not_their_candidates_can_be_collected(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, max_depth: int, logits_dtype: torch.dtype
) -> None:
    monkeypatch.setattr(cut_search, "_DEPTH", max_depth)
    # Few enough for the largest logits of the 36 groups to bound them; too many for that; none; all
    # with top-p too.
    settings = [(top_k, top_p) for top_k in (10, 500, 0) for top_p in (1.0, 0.8)]
    sampling = [
        DeviceSampling(seed=i, temperature=1.2, top_k=top_k, top_p=top_p, min_p=0.01 * (i % 2))
        for i, (top_k, top_p) in enumerate(settings)
    ]
    logits = awkward_logits(len(sampling), 4500, logits_dtype)

    assert compare(logits, sampling, range(len(sampling)), device) == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "vocab_size"), GPU_SHAPES)
@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
def test_tokens_of_all_shapes_match_the_twins(
    num_rows: int, vocab_size: int, logits_dtype: torch.dtype
) -> None:
    sampling = mixed(num_rows)
    logits = awkward_logits(num_rows, vocab_size, logits_dtype)

    differing = compare(logits, sampling, [5 * i for i in range(num_rows)], torch.device("cuda"))

    assert differing <= num_rows // 100


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_each_setting_matches_the_twins_in_many_rows(setting: dict[str, float]) -> None:
    sampling = [DeviceSampling(seed=i, **setting) for i in range(256)]  # type: ignore[arg-type]
    logits = (3 * torch.randn(256, 32_000)).to(torch.bfloat16)

    assert compare(logits, sampling, range(256), torch.device("cuda")) <= 2


def test_a_row_is_sampled_alike_in_any_batch(device: torch.device) -> None:
    num_rows, vocab_size = (len(SETTINGS), 50) if device.type == "cpu" else (130, 32_000)
    sampling = mixed(num_rows)
    logits = awkward_logits(num_rows, vocab_size, torch.bfloat16).to(device)
    positions = [11 * i for i in range(num_rows)]
    together = by_the_kernels(logits, columns_of(sampling, positions, device))

    for row in range(num_rows):
        alone = columns_of(sampling[row : row + 1], positions[row : row + 1], device)
        assert by_the_kernels(logits[row : row + 1], alone) == together[row : row + 1]


def test_equal_logits_are_cut_as_the_twins_cut_them(device: torch.device) -> None:
    settings = [(top_p, top_k) for top_p in (0.05, 0.5, 0.7, 0.9) for top_k in (0, 3, 6)]
    sampling = [
        DeviceSampling(seed=seed, temperature=1.0, top_p=top_p, top_k=top_k)
        for seed in range(1 if device.type == "cpu" else 50)
        for top_p, top_k in settings
    ]
    row = torch.tensor([0.0, 1.0, 0.0, -1.0, 1.0, 0.0, -0.0, 1.0, float("-inf"), 0.0]).bfloat16()

    assert compare(row.repeat(len(sampling), 1), sampling, range(len(sampling)), device) == 0


def test_greedy_rows_take_the_first_of_equals(device: torch.device) -> None:
    logits = torch.randn(2, 5000, device=device)
    logits[0, [4900, 7]] = 9.0
    logits[1, 4999] = 20.0
    columns = columns_of([DeviceSampling(seed=1)] * 2, [0] * 2, device)
    assert by_the_kernels(logits, columns) == [7, 4999]


@pytest.mark.parametrize(
    "setting",
    [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}],
    ids=["greedy", "whole", "cut"],
)
@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
def test_one_logit_that_is_no_number_leaves_its_row_alone_without_a_token(
    device: torch.device, setting: dict[str, float], logits_dtype: torch.dtype
) -> None:
    # In the last of three parts, and the likeliest token is in the first.
    logits = torch.zeros(5, 4500, dtype=logits_dtype, device=device)
    logits[:, 31] = 50.0
    logits[1, 4400], logits[2, 4400] = float("nan"), float("inf")
    logits[3], logits[4, 4000:] = float("-inf"), float("-inf")

    sampling = [DeviceSampling(seed=1, **setting)] * 5  # type: ignore[arg-type]
    columns = columns_of(sampling, [0] * 5, device)

    assert by_the_kernels(logits, columns) == [31, NO_TOKEN, NO_TOKEN, NO_TOKEN, 31]


def test_masked_tokens_are_never_chosen(device: torch.device) -> None:
    logits = torch.full((8, 100), float("-inf"), device=device)
    logits[:, [3, 60]] = 1.0
    sampling = [DeviceSampling(seed=i, temperature=1.0, top_p=0.999) for i in range(8)]

    assert set(by_the_kernels(logits, columns_of(sampling, range(8), device))) == {3, 60}


def test_rows_that_do_not_cut_keep_their_tokens(device: torch.device) -> None:
    sampling = [DeviceSampling(seed=1), DeviceSampling(seed=1, temperature=1.0)]
    token_ids = torch.tensor([7, 9], dtype=torch.int32, device=device)

    sample_cut(torch.zeros(2, 30, device=device), columns_of(sampling, [0, 0], device), token_ids)

    assert token_ids.tolist() == [7, 9]


def test_bad_inputs_are_refused() -> None:
    logits = torch.zeros(2, 8)
    columns = columns_of([DeviceSampling(seed=1)] * 2, [0, 1], torch.device("cpu"))

    for bad_logits, bad_columns in [
        (logits.double(), columns),
        (torch.zeros(8, 2).T, columns),
        (logits, replace(columns, noise_keys_R=columns.noise_keys_R.int())),
        (logits, replace(columns, top_ps_R=columns.top_ps_R[1:])),
        (logits, replace(columns, temperatures_R=columns.temperatures_R.float())),
    ]:
        with pytest.raises(ValueError, match="expected"):
            sample_whole(bad_logits, bad_columns)
        with pytest.raises(ValueError, match="expected"):
            sample_cut(bad_logits, bad_columns, torch.zeros(2, dtype=torch.int32))

    with pytest.raises(ValueError, match="int32"):
        sample_cut(logits, columns, torch.zeros(2))
