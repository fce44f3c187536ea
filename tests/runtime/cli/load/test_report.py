"""The report turns what clients saw into figures."""

from typing import Any

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.load.report import (
    Outcome,
    Slo,
    figures_of,
    parse_slo,
    percentile,
    summarise,
    tier_shares,
)


def outcome(sent_s: float = 0.0, ttft_s: float = 0.1, **changes: Any) -> Outcome:
    """Eleven tokens: the first after `ttft_s`, then one every 20 ms."""
    first_s = sent_s + ttft_s
    fields = {
        "sent_s": sent_s,
        "first_s": first_s,
        "last_s": first_s + 0.2,
        "ended_s": first_s + 0.3,
        "num_prompt_tokens": 100,
        "num_output_tokens": 11,
        "tokens_by_source": {
            "l1": 40,
            "l3": 10,
            "computed:not_found": 49,
            "computed:last_token": 1,
        },
    }
    return Outcome(**(fields | changes))


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    values = [float(each) for each in range(101)]
    assert [percentile(values, percent) for percent in (0, 50, 90, 99, 100)] == [0, 50, 90, 99, 100]
    assert percentile([3.0], 99) == 3.0
    assert percentile([4.0, 2.0], 50) == 3.0


def test_times_are_those_of_the_client() -> None:
    summary = summarise([outcome(ttft_s=0.1), outcome(ttft_s=0.3)], None)
    assert summary.ms["TTFT"]["p50"] == pytest.approx(200)
    assert summary.ms["TPOT"]["p99"] == pytest.approx(20)
    assert summary.ms["latency"]["p50"] == pytest.approx(500)


def test_a_single_token_has_no_time_per_further_token() -> None:
    assert outcome(num_output_tokens=1).tpot_s is None
    assert "TPOT" not in summarise([outcome(num_output_tokens=1)], None).ms


def test_throughput_counts_what_succeeded_from_the_first_sending_to_the_last_end() -> None:
    outcomes = [
        outcome(sent_s=1.0),
        outcome(sent_s=4.6),
        outcome(sent_s=2.0, error="EngineDead: x"),
    ]
    summary = summarise(outcomes, None)
    assert summary.duration_s == pytest.approx(4.0)
    assert summary.requests_per_s == pytest.approx(2 / 4)
    assert summary.prompt_tokens_per_s == pytest.approx(200 / 4)
    assert summary.output_tokens_per_s == pytest.approx(22 / 4)
    assert summary.errors == {"EngineDead: x": 1}


def test_requests_that_only_prepare_have_no_part_in_times_and_tiers() -> None:
    summary = summarise([outcome(ttft_s=9.0, is_measured=False), outcome(ttft_s=0.1)], None)
    assert summary.num_measured == 1
    assert summary.ms["TTFT"]["p99"] == pytest.approx(100)
    assert sum(summary.tokens_by_source.values()) == 100


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    outcomes = [
        outcome(),
        outcome(ttft_s=0.5),
        outcome(last_s=5.0, ended_s=5.0),
        outcome(error="Overloaded: full"),
    ]
    summary = summarise(outcomes, Slo(ttft=0.2, tpot=0.05))
    assert summary.good_fraction == pytest.approx(1 / 4)
    assert summary.goodput_per_s == pytest.approx(1 / 5)
    assert summarise(outcomes, Slo(latency=6.0)).good_fraction == pytest.approx(3 / 4)


def test_tiers_are_shares_of_all_prompt_tokens() -> None:
    shares = tier_shares(summarise([outcome()], None))
    assert shares == {"l1": 0.4, "l3": 0.1, "computed": 0.5}
    assert tier_shares(summarise([outcome(tokens_by_source={})], None)) == {}


def test_a_load_of_failures_alone_has_figures_too() -> None:
    summary = summarise([outcome(error="EngineDead: x", first_s=None)], Slo(ttft=1.0))
    assert (summary.num_measured, summary.ms, summary.goodput_per_s) == (0, {}, 0.0)
    assert {"name": "failed", "value": 1.0, "unit": "requests"} in figures_of(summary, "")


def test_figures_have_names_values_and_units() -> None:
    figures = figures_of(summarise([outcome(due_s=-0.01)], Slo(ttft=1.0)), "warm: ")
    by_name = {figure["name"]: (figure["value"], figure["unit"]) for figure in figures}
    assert by_name["warm: TTFT p90"] == (100.0, "ms")
    assert by_name["warm: sending lag p99"] == (10.0, "ms")
    assert by_name["warm: from l1"] == (0.4, "fraction")
    assert by_name["warm: within the SLO"] == (1.0, "fraction")


@pytest.mark.parametrize(
    "texts", [["ttft=0.2", "tpot=0.02"], ["ttft=0.2 tpot=0.02"], ["ttft=0.2,tpot=.02"]]
)
def test_bounds_are_read_from_one_text_or_several(texts: list[str]) -> None:
    assert parse_slo(texts) == Slo(ttft=0.2, tpot=0.02)
    assert parse_slo([]) is None


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=0", "ttft=x", "ttft=inf", "p99=1", "=1"])
def test_other_bounds_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--slo"):
        parse_slo([text])
