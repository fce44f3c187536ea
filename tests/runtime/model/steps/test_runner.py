import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from raydix.errors import AccountingError
from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.spec.kv_groups import derive_kv_groups
from tests.runtime.model.steps.plan_driver import CPU, GREEDY, PlanDriver, Row, tokens_of

SPLIT = partial(derive_kv_groups, split_at=(1,))
PROMPT = np.random.default_rng(3).integers(0, 199, 32).tolist()
OTHER = np.random.default_rng(4).integers(0, 199, 21).tolist()
RANDOM = DeviceSampling(
    seed=11, temperature=1.5, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.4
)


def generate_alone(
    model: LoadedModel, prompt: list[int], num_tokens: int, sampling: DeviceSampling = GREEDY
) -> list[int]:
    driver = PlanDriver(model)
    return driver.generate([driver.add(0, prompt, sampling=sampling)], num_tokens)[0]


def test_fully_cached_prompt_computes_its_last_token_without_writing(
    small_model: LoadedModel,
) -> None:
    driver = PlanDriver(small_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 12)[0]
    shared = first.pages[:4]
    pages_before = driver.pool[1:].clone()

    second = driver.add(1, PROMPT, shared_pages=shared, num_cached=len(PROMPT) - 1)
    tokens = tokens_of(driver.step([Row(request=second, num_tokens=1, write_start=len(PROMPT))]))

    assert torch.equal(driver.pool[1:], pages_before)
    assert tokens + driver.generate([second], 11)[0] == expected


def test_partly_cached_prompt_continues_from_its_prefix(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 8)[0]

    second = driver.add(1, PROMPT, shared_pages=first.pages[:2], num_cached=16)

    assert driver.generate([second], 8, chunk=5)[0] == expected


def test_poisoned_page_changes_tokens(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 8)[0]
    driver.pool[first.pages[1]] = 0

    second = driver.add(1, PROMPT, shared_pages=first.pages[:2], num_cached=16)

    assert driver.generate([second], 8)[0] != expected


def test_batch_chunks_and_page_order_change_no_sampled_token(small_model: LoadedModel) -> None:
    expected = [generate_alone(small_model, prompt, 24, RANDOM) for prompt in (PROMPT, OTHER)]
    driver = PlanDriver(small_model, page_size=4, num_pages=600)
    others = [
        driver.add(2 + i, OTHER[i:], sampling=DeviceSampling(seed=i, temperature=1.0))
        for i in range(6)
    ]
    driver.generate(others[:3], 5)
    requests = [
        driver.add(slot, prompt, sampling=RANDOM) for slot, prompt in enumerate((PROMPT, OTHER))
    ]

    assert driver.generate(requests + others, 24, chunk=7)[:2] == expected


def test_resumed_request_samples_as_if_never_interrupted(small_model: LoadedModel) -> None:
    expected = generate_alone(small_model, PROMPT, 24, RANDOM)
    driver = PlanDriver(small_model)
    request = driver.add(0, PROMPT, sampling=RANDOM)
    head = driver.generate([request], 10)[0]
    driver.remove(request)

    resumed = driver.add(3, PROMPT + head, sampling=RANDOM, num_prompt_tokens=len(PROMPT))

    assert head + driver.generate([resumed], 14, chunk=9)[0] == expected


def test_32_requests_decode_as_each_alone(small_model: LoadedModel) -> None:
    prompts = [(PROMPT + OTHER)[i : i + 5 + i] for i in range(24)] + [OTHER[:1]] * 8
    driver = PlanDriver(small_model, page_size=16, num_pages=400)

    together = driver.generate(
        [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)], 10
    )

    for slot in (0, 11, 23, 31):
        assert together[slot] == generate_alone(small_model, prompts[slot], 10)


def test_row_one_step_late_writes_only_to_the_padding_page(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    late = driver.add(0, PROMPT)
    running = driver.add(1, OTHER)
    expected = generate_alone(small_model, OTHER, 9)
    tokens = driver.generate([running, late], 5)[0]
    # The request ended: its pages were given away, so its table names pages that the late row must
    # not touch.
    driver.runner.apply(
        StepPlan(step=0, removed_slots=int32_array([0]), added=(added_request(0, PROMPT),))
    )
    pages_before = driver.pool[late.pages].clone()
    for _ in range(4):
        output = driver.step([Row(request=running, num_tokens=1), Row(request=late, num_tokens=1)])
        tokens += tokens_of(output)[:1]

    assert tokens == expected
    assert torch.equal(driver.pool[late.pages], pages_before)


def test_layers_wait_for_the_load_before_they_read(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 6)[0]
    pages = first.pages[:3]
    stored = driver.pool[pages].clone()
    driver.pool[pages] = 0
    waits: list[tuple[int, int]] = []

    def wait_layer(transfer_id: int, layer: int) -> None:
        waits.append((transfer_id, layer))
        driver.pool[pages, layer] = stored[:, layer]

    second = driver.add(1, PROMPT, shared_pages=pages, num_cached=24)
    running = driver.add(2, OTHER)
    rows = [Row(request=running, num_tokens=21), Row(request=second, num_tokens=8, load=41)]
    tokens = tokens_of(driver.step(rows, wait_layer))[1:]

    assert waits == [(41, layer) for layer in range(small_model.spec.num_layers)]
    assert tokens + driver.generate([second], 5)[0] == expected


def test_a_bias_ends_with_its_request(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    biased = DeviceSampling(seed=0, biased_token_ids=(17,), biases=(100.0,))
    first = driver.add(0, PROMPT, sampling=biased)
    assert driver.generate([first], 4) == [[17] * 4]
    driver.remove(first)

    tokens = driver.generate([driver.add(0, PROMPT)], 4)

    assert tokens[0] == generate_alone(small_model, PROMPT, 4)


def test_a_bias_leaves_the_rows_beside_it_alone(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    biased = DeviceSampling(seed=0, biased_token_ids=(17,), biases=(100.0,))
    requests = [driver.add(0, OTHER), driver.add(1, PROMPT, sampling=biased), driver.add(2, PROMPT)]

    tokens = driver.generate(requests, 5)

    expected = [generate_alone(small_model, prompt, 5) for prompt in (OTHER, PROMPT)]
    assert tokens == [expected[0], [17] * 5, expected[1]]


def test_logprobs_come_from_raw_logits(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    driver.record_logits()
    sampling = [
        DeviceSampling(seed=1, temperature=2.0, top_k=5, num_logprobs=3),
        GREEDY,
        DeviceSampling(
            seed=1,
            repetition_penalty=3.0,
            num_logprobs=0,
            biased_token_ids=(5, 6),
            biases=(3.0, -2.0),
        ),
    ]
    requests = [driver.add(slot, PROMPT[slot:], sampling=s) for slot, s in enumerate(sampling)]

    result = driver.step([Row(request=r, num_tokens=r.num_tokens) for r in requests]).to_result(
        0, 0, 0.5
    )

    assert len(result.logprobs) == 3
    assert result.logprobs[1] is None
    for row, num_top in ((0, 3), (2, 0)):
        entry = result.logprobs[row]
        assert entry is not None
        raw = driver.logits[0][row].log_softmax(-1)
        order = raw.argsort(descending=True).tolist()
        sampled = int(result.token_ids[row])
        assert entry.token_ids == (sampled, *order[:num_top])
        assert entry.ranks == (order.index(sampled) + 1, *range(1, num_top + 1))
        assert all(
            math.isclose(logprob, raw[token_id].item(), rel_tol=1e-6)
            for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True)
        )


def test_plan_without_rows_computes_nothing(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)

    result = driver.step([]).to_result(rank=2, step=9, compute_s=0.25)

    assert (result.rank, result.step, result.compute_s) == (2, 9, 0.25)
    assert len(result.token_ids) == 0
    assert result.logprobs == ()


def test_prefill_chunk_samples_nothing(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)

    output = driver.step([Row(request=driver.add(0, PROMPT), num_tokens=8)])

    assert len(output.token_ids) == 0


def test_check_finds_a_page_outside_the_pool(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    request = driver.add(0, PROMPT)
    driver.runner.check()

    driver.pool.resize_(max(request.pages), *driver.pool.shape[1:])

    with pytest.raises(AccountingError, match=f"name pages 0 to {max(request.pages)}"):
        driver.runner.check()


def added_request(slot: int, token_ids: list[int]) -> AddedRequest:
    return AddedRequest(
        slot=Slot(slot),
        request_id=RequestId(f"again-{slot}"),
        token_ids=int32_array(token_ids),
        num_prompt_tokens=len(token_ids),
        sampling=GREEDY,
    )


def one_row(slot: int, start: int, num_tokens: int) -> StepPlan:
    columns = {
        "row_slots": slot,
        "row_starts": start,
        "row_num_tokens": num_tokens,
        "row_write_starts": start,
        "row_output_positions": 0,
        "row_loads": -1,
    }
    return StepPlan(step=0, **{name: int32_array([value]) for name, value in columns.items()})


def run_plan(driver: PlanDriver, plan: StepPlan) -> None:
    driver.runner.apply(plan)
    driver.runner.execute(plan, lambda load, layer: None)


def table_plan(*, page_ids: list[int], slot: int = 0, start: int = 0, group: int = 0) -> StepPlan:
    changes = TableChanges(
        group=group,
        slots=int32_array([slot]),
        starts=int32_array([start]),
        counts=int32_array([len(page_ids)]),
        page_ids=int32_array(page_ids),
    )
    return StepPlan(step=0, tables=(changes,))


def test_a_plan_that_names_a_page_beyond_the_pool_changes_nothing(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model, num_pages=120)
    before = driver.runner.slots.tables_XN[0].clone()
    added = added_request(3, PROMPT)
    good, bad = (
        table_plan(slot=3, page_ids=[5]).tables[0],
        table_plan(slot=3, start=1, page_ids=[121]).tables[0],
    )

    with pytest.raises(
        AccountingError, match="name pages 121 to 121 of KV group 0; its pool has 120"
    ):
        driver.runner.apply(StepPlan(step=0, added=(added,), tables=(good, bad)))

    assert torch.equal(driver.runner.slots.tables_XN[0], before)
    assert not driver.runner.slots.is_taken.any()


IMPOSSIBLE = {
    "slot taken": StepPlan(step=0, added=(added_request(0, PROMPT),)),
    "no such slot": StepPlan(step=0, added=(added_request(99, PROMPT),)),
    "too many tokens": StepPlan(step=0, added=(added_request(1, [1] * 300),)),
    "free slot removed": StepPlan(step=0, removed_slots=int32_array([1])),
    "table too long": table_plan(start=31, page_ids=[1, 2]),
    "table before its start": table_plan(start=-1, page_ids=[1, 2]),
    "no such table": table_plan(slot=41, page_ids=[1]),
    "no such page": table_plan(page_ids=[120, 121]),
    "page below zero": table_plan(page_ids=[-1]),
    "no such KV group": table_plan(group=1, page_ids=[1]),
    "row in a free slot": one_row(1, 0, 1),
    "row without tokens": one_row(0, 0, 0),
    "row past the end": one_row(0, 250, 7),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_plan_is_refused(small_model: LoadedModel, name: str) -> None:
    driver = PlanDriver(small_model)
    driver.add(0, PROMPT)

    with pytest.raises(AccountingError, match=r"\d"):
        run_plan(driver, IMPOSSIBLE[name])


def test_layers_in_two_groups_compute_what_they_do_in_one(
    small_checkpoint: Path, small_model: LoadedModel
) -> None:
    expected = [generate_alone(small_model, prompt, 24) for prompt in (PROMPT, OTHER)]
    split = load_model(small_checkpoint, device=CPU, dtype=torch.float32, group_layers=SPLIT)
    driver = PlanDriver(split)
    assert [pool.shape[1] for pool in driver.pools] == [1, 2]

    requests = [driver.add(slot, prompt) for slot, prompt in enumerate((PROMPT, OTHER))]

    assert driver.generate(requests, 24, chunk=9) == expected


def test_a_group_reads_the_pages_of_its_own_tables(small_checkpoint: Path) -> None:
    """The control of the test before: with a page of the second group lost, tokens differ."""
    split = load_model(small_checkpoint, device=CPU, dtype=torch.float32, group_layers=SPLIT)
    driver = PlanDriver(split)
    first = driver.add(0, PROMPT)
    expected = driver.generate([first], 8)[0]
    driver.pools[1][driver.num_pages + 1 - first.pages[1]] = 0

    second = driver.add(1, PROMPT, shared_pages=first.pages[:2], num_cached=16)

    assert driver.generate([second], 8)[0] != expected
