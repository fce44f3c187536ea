"""Steps that pass through packed columns, as captured ones do, give what plain steps give."""

import numpy as np
import pytest
import torch

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from tests.runtime.model.steps.plan_driver import GREEDY, DrivenRequest, PlanDriver, Row, tokens_of
from tests.runtime.model.steps.uncaptured_steps import UncapturedSteps, without_graphs

PROMPT = np.random.default_rng(5).integers(0, 199, 90).tolist()
RANDOM = DeviceSampling(seed=4, temperature=1.2, num_logprobs=2)


def capture(driver: PlanDriver) -> UncapturedSteps:
    return without_graphs(driver.runner)


def assert_same_pools(driver: PlanDriver, other: PlanDriver) -> None:
    """Do both hold the same, but for the padding page?"""
    for pools in zip(driver.pools, other.pools, strict=True):
        torch.testing.assert_close(*(pool[1:] for pool in pools), atol=1e-5, rtol=1e-5)


def with_prefix(
    driver: PlanDriver, num_cached: int, sampling: DeviceSampling = GREEDY
) -> DrivenRequest:
    """A request whose first tokens are computed already."""
    request = driver.add(0, PROMPT, sampling=sampling)
    if num_cached:
        driver.step([Row(request=request, num_tokens=num_cached)])
    return request


@pytest.mark.parametrize("page_size", [8, 16])
@pytest.mark.parametrize("num_cached", [88, 77, 75, 74, 41, 0])
def test_an_extension_samples_and_writes_as_the_same_rows_do(
    small_model: LoadedModel, num_cached: int, page_size: int
) -> None:
    plain, columns = (PlanDriver(small_model, page_size=page_size) for _ in range(2))
    requests = [with_prefix(driver, num_cached) for driver in (plain, columns)]
    steps = capture(columns)
    rows = [Row(request=request, num_tokens=90 - num_cached) for request in requests]

    tokens = [
        tokens_of(driver.step([row])) for driver, row in zip((plain, columns), rows, strict=True)
    ]

    assert len(steps.replayed) == 1
    assert tokens[0] == tokens[1]
    torch.testing.assert_close(plain.pool[1:], columns.pool[1:], atol=1e-5, rtol=1e-5)
    tokens_XL = [driver.runner.slots.tokens_XL[0] for driver in (plain, columns)]
    assert torch.equal(*tokens_XL)


def test_decoding_goes_on_from_an_extension(small_model: LoadedModel) -> None:
    plain, columns = PlanDriver(small_model), PlanDriver(small_model)
    capture(columns)

    expected, tokens = (
        driver.generate([driver.add(0, PROMPT[:40]), driver.add(1, PROMPT[:9])], 8)
        for driver in (plain, columns)
    )

    assert tokens == expected


def test_decodes_of_a_model_that_keeps_states_read_columns_alone(state_model: LoadedModel) -> None:
    plain, columns = PlanDriver(state_model), PlanDriver(state_model)
    steps = capture(columns)

    expected, tokens = (
        driver.generate([driver.add(0, PROMPT[:40]), driver.add(1, PROMPT[:9])], 12)
        for driver in (plain, columns)
    )

    assert tokens == expected
    assert len(steps.replayed) >= 11
    assert {shape.is_decode for shape in steps.replayed} == {True, False}
    assert_same_pools(plain, columns)


@pytest.mark.parametrize("num_cached", [88, 80, 77, 41, 0])
def test_an_extension_changes_states_as_the_same_rows_do(
    state_model: LoadedModel, num_cached: int
) -> None:
    plain, columns = PlanDriver(state_model), PlanDriver(state_model)
    requests = [with_prefix(driver, num_cached) for driver in (plain, columns)]
    steps = capture(columns)

    tokens = [
        tokens_of(driver.step([Row(request=request, num_tokens=90 - num_cached)]))
        for driver, request in zip((plain, columns), requests, strict=True)
    ]

    assert [shape.num_rows for shape in steps.replayed] == [1]
    assert tokens[0] == tokens[1]
    assert_same_pools(plain, columns)


def test_prompts_beside_decodes_change_states_as_the_same_rows_do(
    state_model: LoadedModel,
) -> None:
    plain, columns = (PlanDriver(state_model, num_pages=200) for _ in range(2))
    steps = capture(columns)

    tokens = []
    for driver in (plain, columns):
        decoding = [driver.add(slot, PROMPT[slot:40]) for slot in range(3)]
        rows = [Row(request=each, num_tokens=each.num_prompt_tokens) for each in decoding]
        tokens += [tokens_of(driver.step(rows))]

        long, short = driver.add(3, PROMPT), driver.add(4, PROMPT[7:70])
        for taken in (30, 33):
            singles = [Row(request=each, num_tokens=1) for each in decoding]
            prompts = Row(request=long, num_tokens=taken), Row(request=short, num_tokens=taken - 5)
            tokens += [tokens_of(driver.step([prompts[0], *singles, prompts[1]]))]
        everyone = [*decoding, short]
        tokens += [tokens_of(driver.step([Row(request=each, num_tokens=1) for each in everyone]))]

    assert [shape.num_tokens for shape in steps.replayed] == [128, 64, 64, 4]
    assert tokens[:4] == tokens[4:]
    assert_same_pools(plain, columns)


def test_more_prompts_than_a_shape_has_states_for_run_row_by_row(state_model: LoadedModel) -> None:
    driver = PlanDriver(state_model, num_pages=500)
    steps = capture(driver)
    requests = [driver.add(slot, PROMPT[:9]) for slot in range(17)]

    driver.step([Row(request=each, num_tokens=2) for each in requests[:16]])
    driver.step([Row(request=each, num_tokens=2) for each in requests[:16]])
    driver.step([Row(request=each, num_tokens=2) for each in requests])

    assert len(steps.replayed) == 2


def test_what_a_row_does_not_keep_goes_to_the_padding_page(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    request = with_prefix(driver, 80)
    steps = capture(driver)
    before = driver.pool[1:].clone()

    driver.step([Row(request=request, num_tokens=10, write_start=90)])

    assert len(steps.replayed) == 1
    assert torch.equal(driver.pool[1:], before)


MIXED = (
    GREEDY,
    DeviceSampling(seed=4, temperature=1.2, num_logprobs=2),
    DeviceSampling(seed=5, temperature=0.9, top_k=20, top_p=0.9),
    DeviceSampling(seed=6, temperature=2.0, min_p=0.1),
    DeviceSampling(seed=7, temperature=1.0, repetition_penalty=1.4, top_p=0.8),
    DeviceSampling(seed=8, min_tokens=4, masked_until_min_tokens=(3, 700)),
    DeviceSampling(seed=9, temperature=1.0, biased_token_ids=(3, 77), biases=(4.0, -9.5)),
)


@pytest.mark.parametrize(
    "sampling", [*MIXED, MIXED], ids=lambda each: "mixed" if isinstance(each, tuple) else None
)
def test_a_captured_step_samples_as_its_operations_do(
    small_model: LoadedModel, sampling: DeviceSampling | tuple[DeviceSampling, ...]
) -> None:
    wanted = sampling if isinstance(sampling, tuple) else (sampling,)
    plain, columns = (PlanDriver(small_model, num_pages=200) for _ in range(2))
    steps = capture(columns)

    expected, tokens = (
        driver.generate(
            [driver.add(slot, PROMPT[slot:], sampling=each) for slot, each in enumerate(wanted)], 9
        )
        for driver in (plain, columns)
    )

    assert tokens == expected
    assert len(steps.replayed) >= 8


def test_a_captured_step_has_the_logprobs_of_its_operations(small_model: LoadedModel) -> None:
    plain, columns = PlanDriver(small_model), PlanDriver(small_model)
    requests = [with_prefix(driver, 80, RANDOM) for driver in (plain, columns)]
    capture(columns)

    results = [
        driver.step([Row(request=request, num_tokens=10)]).to_result(0, 0, 0.0)
        for driver, request in zip((plain, columns), requests, strict=True)
    ]

    assert results[0].token_ids.tolist() == results[1].token_ids.tolist()
    expected, logprobs = results[0].logprobs[0], results[1].logprobs[0]
    assert expected is not None
    assert logprobs is not None
    assert logprobs.token_ids == expected.token_ids


@pytest.mark.parametrize("num_tokens", [10, 1])
def test_a_small_step_waits_for_its_load_layer_by_layer(
    small_model: LoadedModel, num_tokens: int
) -> None:
    tokens, expected, waits = wait_for_load(small_model, num_tokens, has_layered_shapes=True)

    assert waits == [(7, layer) for layer in range(small_model.spec.num_layers)]
    assert tokens == expected


@pytest.mark.parametrize("num_tokens", [10, 1])
def test_without_layered_shapes_a_small_step_starts_when_all_of_its_load_has_arrived(
    small_model: LoadedModel, num_tokens: int
) -> None:
    tokens, expected, waits = wait_for_load(small_model, num_tokens, has_layered_shapes=False)

    assert waits == [(7, small_model.spec.num_layers - 1)]
    assert tokens == expected


def wait_for_load(
    model: LoadedModel, num_tokens: int, *, has_layered_shapes: bool
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """The token of a step whose row loads what is before its own tokens, that which is expected,
    and what was waited for."""
    driver = PlanDriver(model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 1)[0]
    pages = first.pages[:10]
    stored = driver.pool[pages].clone()
    driver.pool[pages] = 0
    waits: list[tuple[int, int]] = []

    def wait_layer(transfer_id: int, layer: int) -> None:
        layers = slice(layer, layer + 1) if has_layered_shapes else slice(None)
        waits.append((transfer_id, layer))
        driver.pool[pages, layers] = stored[:, layers]

    start = len(PROMPT) - num_tokens
    second = driver.add(1, PROMPT, shared_pages=pages, num_cached=80)
    if start > 80:
        driver.pool[pages] = stored
        driver.step([Row(request=second, num_tokens=start - 80)])
        driver.pool[pages] = 0
    steps = capture(driver)
    if not has_layered_shapes:
        steps.shapes = [shape for shape in steps.shapes if not shape.waits_by_layer]
    row = Row(request=second, num_tokens=num_tokens, load=7)
    tokens = tokens_of(driver.step([row], wait_layer))
    return tokens, expected, waits


def test_prompts_beside_decodes_sample_and_write_as_the_same_rows_do(
    small_model: LoadedModel,
) -> None:
    plain, columns = PlanDriver(small_model), PlanDriver(small_model)
    steps = capture(columns)

    tokens = []
    for driver in (plain, columns):
        decoding = [driver.add(slot, PROMPT[slot:40]) for slot in range(3)]
        rows = [Row(request=each, num_tokens=each.num_prompt_tokens) for each in decoding]
        tokens += [tokens_of(driver.step(rows))]

        long, short = driver.add(3, PROMPT), driver.add(4, PROMPT[7:70])
        for taken in (30, 33):
            singles = [Row(request=each, num_tokens=1) for each in decoding]
            prompts = Row(request=long, num_tokens=taken), Row(request=short, num_tokens=taken - 5)
            tokens += [tokens_of(driver.step([prompts[0], *singles, prompts[1]]))]

    assert [shape.num_tokens for shape in steps.replayed] == [128, 64, 64]
    assert tokens[:3] == tokens[3:]
    assert [len(each) for each in tokens[:3]] == [3, 3, 3]
    torch.testing.assert_close(plain.pool[1:], columns.pool[1:], atol=1e-5, rtol=1e-5)


def test_each_layer_of_a_prompt_waits_for_its_part_of_a_load(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 1)[0]
    pages = first.pages[:5]
    stored = driver.pool[pages].clone()
    driver.pool[pages] = 0
    waits: list[tuple[int, int]] = []

    def wait_layer(transfer_id: int, layer: int) -> None:
        waits.append((transfer_id, layer))
        driver.pool[pages, layer] = stored[:, layer]

    second = driver.add(1, PROMPT, shared_pages=pages, num_cached=40)
    other = driver.add(2, PROMPT[:5])
    steps = capture(driver)
    rows = [Row(request=other, num_tokens=4), Row(request=second, num_tokens=50, load=7)]
    tokens = tokens_of(driver.step(rows, wait_layer))

    assert [shape.num_tokens for shape in steps.replayed] == [64]
    assert waits == [(7, layer) for layer in range(small_model.spec.num_layers)]
    assert tokens == expected


@pytest.mark.parametrize("num_others", [0, 1])
def test_each_layer_waits_for_its_part_of_a_load_of_states(
    state_model: LoadedModel, num_others: int
) -> None:
    driver = PlanDriver(state_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 1)[0]
    pages = first.pages[:5]
    groups = state_model.kv_layout(driver.page_size, "float32").groups
    page_ids = [driver.page_ids(group, pages) for group in range(len(groups))]
    stored = [pool[ids].clone() for pool, ids in zip(driver.pools, page_ids, strict=True)]
    for pool, ids in zip(driver.pools, page_ids, strict=True):
        pool[ids] = 0

    def wait_layer(transfer_id: int, layer: int) -> None:
        for group, pool, ids, held in zip(groups, driver.pools, page_ids, stored, strict=True):
            if layer in group.layers:
                place = group.layers.index(layer)
                pool[ids, place] = held[:, place]

    second = driver.add(1, PROMPT, shared_pages=pages, num_cached=40)
    others = [driver.add(2, PROMPT[:5])] * num_others
    steps = capture(driver)
    rows = [Row(request=each, num_tokens=4) for each in others]
    tokens = tokens_of(driver.step([*rows, Row(request=second, num_tokens=50, load=7)], wait_layer))

    assert [shape.waits_by_layer for shape in steps.replayed] == [True]
    assert tokens == expected


def test_steps_that_no_shape_holds_run_row_by_row(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model, num_pages=500)
    steps = capture(driver)
    requests = [driver.add(slot, PROMPT[:3]) for slot in range(25)]

    driver.step([Row(request=each, num_tokens=2) for each in requests])

    assert not steps.replayed


def test_a_row_that_samples_nothing_may_be_captured_too(small_model: LoadedModel) -> None:
    plain, columns = PlanDriver(small_model), PlanDriver(small_model)
    steps = capture(columns)

    tokens = []
    for driver in (plain, columns):
        requests = [driver.add(slot, PROMPT[slot:10]) for slot in range(3)]
        driver.step(
            [Row(request=request, num_tokens=9 - slot) for slot, request in enumerate(requests)]
        )
        # The second of three rows of one token does not reach the end of its prompt.
        more = driver.add(3, PROMPT)
        rows = [requests[0], more, requests[1]]
        tokens += [tokens_of(driver.step([Row(request=each, num_tokens=1) for each in rows]))]
        tokens += [tokens_of(driver.step([Row(request=more, num_tokens=40)]))]
        tokens += [tokens_of(driver.step([Row(request=more, num_tokens=49)]))]

    assert [shape.num_rows for shape in steps.replayed[1:]] == [4, 1, 1]
    assert tokens[:3] == tokens[3:]
    assert [len(each) for each in tokens[:3]] == [2, 0, 1]
