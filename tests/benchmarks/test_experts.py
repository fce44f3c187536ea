"""The benchmark of shared experts, tiny and on the cpu: it measures what it says it does."""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from benchmarks import experts
from benchmarks.engine.engines import Answer, Options, ray_engine
from benchmarks.model.model_shapes import SHAPES, ModelConfig
from benchmarks.shared_experts.expert_engines import popularity_bias, steps_of
from benchmarks.shared_experts.expert_figures import while_moving
from benchmarks.shared_experts.expert_loads import on_ranks
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.api.client import AsyncLLM

TINY = Options(device="cpu", is_tiny=True, repeats=1)


def figures_of(part: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The figures of a part's tiny run, by name; it meets the bars that such a run has."""
    assert experts.main(TINY, experts.Choices(), [part]) == 0
    # Ray tells there, too, that a process has ended.
    *_, line = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record["benchmark"] == f"experts_{part}"
    return {figure["name"]: figure for figure in record["figures"]}


def answer(arrivals_s: tuple[float, ...]) -> Answer:
    """A stream with a token at each of these times."""
    return Answer(
        sent_s=0.0,
        first_s=arrivals_s[0],
        ended_s=arrivals_s[-1],
        arrivals_s=arrivals_s,
        num_tokens=len(arrivals_s),
        tokens_by_source={},
    )


def test_steps_are_those_in_which_all_streams_generate() -> None:
    watched, later = answer((1.0, 2.0, 4.0, 7.0, 11.0)), answer((2.0, 8.0))

    assert steps_of([watched, later]) == [(2.0, 4.0), (4.0, 7.0)]


def test_steps_beside_moves_are_compared_with_the_others() -> None:
    answers = [answer((0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 9.0, 10.0))]

    figures = {each.name: each for each in while_moving(TINY, answers, moving=[(3.5, 7.0)])}

    assert figures["steps beside moves"].value == 2
    assert figures["longest step while experts move over the others' p99"].value == 3.0
    assert figures["longest step, experts moving"].baseline == 1000.0


def test_steps_without_moves_are_refused() -> None:
    with pytest.raises(RuntimeError, match="beside 0 steps"):
        while_moving(TINY, [answer((0.0, 1.0, 2.0, 3.0))], moving=[])


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("balancedness", [0.6, 0.9])
def test_bias_makes_ranks_as_uneven_as_asked(balancedness: float, num_ranks: int) -> None:
    model = SHAPES["biased_moe_l12"]
    bias_E = popularity_bias(model, balancedness, num_ranks)["layers.11.mlp.router.bias"].numpy()
    spread = 0.02 * 2048**0.5
    logits_TE = np.random.default_rng(1).normal(0, spread, (2000, 128)) + bias_E
    chosen_TK = np.argsort(-logits_TE, axis=1)[:, :8]

    load = np.bincount(chosen_TK.ravel() // (128 // num_ranks), minlength=num_ranks)

    assert load.mean() / load.max() == pytest.approx(balancedness, abs=0.03)


def test_engines_that_share_nothing_have_no_section_about_experts() -> None:
    sections = on_ranks(4, {}, ep=1, experts={"rebalance": "none"})
    assert sections == {"parallel": {"dp": 4, "ep": 1}}


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_rows_as_float8_are_measured_beside_others(
    ray_cluster: PrivateCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transports = []

    def start(
        options: Options, model: ModelConfig, sections: Mapping[str, Any], benchmark: str
    ) -> AbstractAsyncContextManager[AsyncLLM]:
        transports.append(sections.get("experts", {}).get("transport"))
        return ray_engine(options, model, sections, benchmark)

    monkeypatch.setattr(experts, "ray_engine", start)
    figures = figures_of("transport", capsys)

    assert sorted(transports, key=str) == [None, "auto", "fp8"]
    ratio, prefill = (
        figures["prefill, rows as float8 over bf16"],
        figures["prefill, rows as float8"],
    )
    assert ratio["value"] == pytest.approx(prefill["value"] / prefill["baseline"], rel=0.01)
    assert figures["TPOT, rows as float8"]["value"] > 0


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_steps_and_prompts_are_measured_while_and_after_experts_move(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of("balance", capsys)

    assert figures["steps beside moves"]["value"] >= 2
    balancedness = figures["balancedness of prompts, mean of layers"]
    assert balancedness["value"] > balancedness["baseline"]
    ratio, prefill = figures["prefill, balanced over skewed"], figures["prefill, balanced"]
    assert ratio["value"] == pytest.approx(prefill["value"] / prefill["baseline"], rel=0.01)


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_streams_come_through_all_tiers_and_through_the_death_of_a_rank(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of("whole", capsys)

    same = figures["a rank killed: streams with the same tokens"]
    assert same["value"] == figures["a rank killed: streams"]["value"]
    assert figures["detect"]["value"] < figures["first token"]["value"]
    assert 0 < figures["refill"]["value"] < figures["restart, refill included"]["value"]
    assert figures["longest time without any token"]["value"] > 0
