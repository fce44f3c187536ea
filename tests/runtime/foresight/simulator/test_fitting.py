"""Times of steps that are fitted are those by which they were made."""

import pytest

from raydix.runtime.foresight.simulator.fitting import (
    DecodeTime,
    FirstTokenTime,
    LoadTime,
    PromptTime,
    fit_loads,
    fit_messages,
    fit_steps,
)

SIZES = (64, 256, 1024, 4096, 8192)


def test_what_made_the_times_is_found_again() -> None:
    prompts = [PromptTime(n, 0.003 + 5e-6 * n + 0.7e-9 * n * n / 2) for n in SIZES]
    decodes = [DecodeTime(n, 0.002 + 1e-5 * n) for n in (1, 8, 32)]
    times = fit_steps(prompts, decodes)
    assert times.fixed_s == pytest.approx(0.002)
    assert times.prompt_fixed_s == pytest.approx(0.001)
    assert times.prompt_token_s == pytest.approx(5e-6)
    assert times.prompt_pair_s == pytest.approx(0.7e-9)
    assert times.decode_row_s == pytest.approx(1e-5)
    assert times.spread == pytest.approx(0.0, abs=1e-6)


def test_no_time_is_below_nothing() -> None:
    prompts = [PromptTime(n, 0.01 - 1e-7 * n) for n in SIZES]
    decodes = [DecodeTime(n, 0.01 - 1e-5 * n) for n in (1, 8, 32)]
    times = fit_steps(prompts, decodes)
    assert times.prompt_token_s == times.prompt_pair_s == times.decode_row_s == 0.0
    assert 0.008 < times.fixed_s < 0.0105
    assert 0.0 < times.spread < 0.2


def test_contexts_and_steps_of_several_rows_are_told_apart() -> None:
    prompts = [
        PromptTime(new, 0.003 + 5e-6 * new + 0.7e-9 * new * (cached + new / 2), cached)
        for new in SIZES
        for cached in (0, 4096)
    ]
    decodes = [
        DecodeTime(
            num_rows=40 * rows,
            seconds=40 * (0.002 + rows * (1e-5 + 1.5e-8 * context)),
            num_steps=40,
            context=context,
        )
        for rows in (1, 8, 32)
        for context in (64.0, 2048.0)
    ]
    times = fit_steps(prompts, decodes)
    assert times.fixed_s == pytest.approx(0.002)
    assert times.prompt_pair_s == pytest.approx(0.7e-9)
    assert times.decode_row_s == pytest.approx(1e-5)
    assert times.decode_context_s == pytest.approx(1.5e-8)


def test_a_first_token_takes_its_links_and_its_client_again() -> None:
    found = fit_messages(
        [FirstTokenTime(n, 3 * 0.0004 + 0.002 + 1e-7 * n, 1.5 * 0.0004) for n in SIZES]
    )
    assert found.link_s == pytest.approx(0.0004)
    assert found.client_s == pytest.approx(0.002)
    assert found.client_token_s == pytest.approx(1e-7)


def test_links_take_no_longer_than_all_of_it() -> None:
    found = fit_messages([FirstTokenTime(n, 0.003, 0.0029) for n in SIZES])
    assert found.client_s == 0.0
    assert 3 * found.link_s == pytest.approx(0.003)


def test_loads_have_a_fixed_part_and_a_rate() -> None:
    sizes = (1 << 26, 1 << 28, 1 << 29)
    found = fit_loads([LoadTime(n, 0.0005 + n / 50e9) for n in sizes])
    assert found is not None
    assert found.fixed_s == pytest.approx(0.0005)
    assert found.bytes_per_s == pytest.approx(50e9)


def test_loads_of_one_size_have_a_rate() -> None:
    found = fit_loads([LoadTime(1000, 0.001), LoadTime(1000, 0.003), LoadTime(0, 0.0)])
    assert found is not None
    assert found.seconds(1000) == pytest.approx(0.002)
    assert fit_loads([LoadTime(0, 0.0)]) is None


def test_what_an_idle_device_waits_for_is_no_part_of_its_steps() -> None:
    def seconds(num: int) -> float:
        return 0.002 + 5e-6 * num + 0.7e-9 * num * num / 2

    decodes = [DecodeTime(n, 0.002 + 1e-5 * n) for n in (1, 8, 32)]
    alone = [PromptTime(n, 0.0025 + seconds(n)) for n in SIZES]
    beside = [PromptTime(n, seconds(n)) for n in SIZES[:3]]
    times = fit_steps(alone, decodes, beside)
    assert times.launch_s == pytest.approx(0.0025)
    assert times.prompt_token_s == pytest.approx(5e-6)
    assert times.prompt_fixed_s == pytest.approx(0.0, abs=1e-9)
    assert fit_steps(alone, decodes).launch_s == 0.0


def test_a_busy_device_takes_no_longer_than_an_idle_one() -> None:
    decodes = [DecodeTime(n, 0.002) for n in (1, 8, 32)]
    alone = [PromptTime(n, 0.002 + 5e-6 * n) for n in SIZES]
    disturbed = [PromptTime(n, 0.02 + 5e-6 * n) for n in SIZES[:3]]
    times = fit_steps(alone, decodes, disturbed)
    assert times.launch_s == 0.0
    assert times.prompt_token_s == pytest.approx(5e-6)
    assert times.prompt_fixed_s == pytest.approx(0.0, abs=1e-9)
