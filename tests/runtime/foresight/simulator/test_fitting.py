"""Times of steps that are fitted are those by which they were made."""

import pytest

from raydix.runtime.foresight.simulator.fitting import DecodeTime, PromptTime, fit_steps

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
