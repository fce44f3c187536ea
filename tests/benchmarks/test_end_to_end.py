"""The end-to-end benchmarks, tiny and on the cpu: they measure what they say they do."""

import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    actor_overhead,
    aiperf,
    bf16_accuracy,
    codec_logits,
    cold_prefill,
    decode_beside_copies,
    decode_tpot,
    gpu_idle,
    http_overhead,
    overlap,
    pull_engines,
    reload,
    start,
    tensor_parallel,
    throughput,
    window_cache,
)
from benchmarks.engine.engines import (
    DENSE_TINY,
    MOE_TINY,
    Answer,
    Options,
    expect_sources,
    ray_engine,
)
from benchmarks.engine.watched_copies import Window
from benchmarks.engine.workloads import TINY_BATCHES
from benchmarks.model.reference_models import MIN_TOP1
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.engine import EngineConfig

TINY = Options(device="cpu", is_tiny=True, repeats=1)


def figures_of(
    main: Callable[[Options], int], capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, Any]]:
    """The figures of a tiny run, by name."""
    assert main(TINY) == 0
    # Ray prints warnings there, too, where the machine is short of memory.
    [line] = [each for each in capsys.readouterr().out.splitlines() if each.startswith("{")]
    record = json.loads(line)
    assert record["config"]["model"] == "tiny"
    return {figure["name"]: figure for figure in record["figures"]}


def answer(**times: Any) -> Answer:
    """A stream of three tokens."""
    fields = {
        "sent_s": 0.0,
        "first_s": 1.0,
        "ended_s": 3.0,
        "arrivals_s": (1.0, 2.0, 3.0),
        "num_tokens": 3,
    }
    return Answer(**{**fields, "tokens_by_source": {"l1": 4, "computed:last_token": 1}, **times})


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_reload_measures_each_state_at_both_page_sizes(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(reload.main, capsys)

    for page_size in (16, 64):
        assert {
            f"TTFT, L2 hit, page {page_size}",
            f"TTFT, L1 hit, page {page_size}",
            f"load, page {page_size}",
        } <= set(figures)
    assert all(figure["value"] > 0 for figure in figures.values())
    assert not any("max_value" in figure or "min_value" in figure for figure in figures.values())


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_reload_measures_ranks_that_load_at_once(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(lambda options: reload.main(options, 2), capsys)

    for page_size in (16, 64):
        loads = figures[f"loads of 2 ranks, page {page_size}"]
        assert loads["value"] > 0
        assert loads["baseline"] > 0
        assert figures[f"slowest TTFT, L2 hit, page {page_size}"]["value"] > 0


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_contexts_of_another_engine_are_pulled_page_by_page(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(lambda options: pull_engines.main(options, 2, 2, "dense_l16"), capsys)

    assert figures["pages pulled"]["value"] == 2 * 256 / 64
    assert figures["TTFT, pulled"]["value"] > 0
    assert figures["TTFT, computed"]["value"] > 0


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_cold_prefill_has_a_floor(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    [figure] = figures_of(cold_prefill.main, capsys).values()

    assert figure["value"] > figure["baseline"] > 0


def test_overlap_compares_both_with_the_longer_of_the_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = figures_of(overlap.main, capsys)

    for ratio in ("0.25", "1", "4"):
        both, over = (
            figures[f"compute {ratio} x load: both"],
            figures[f"compute {ratio} x load: both over the longer"],
        )
        assert over["value"] == pytest.approx(both["value"] / both["baseline"], rel=0.01)


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_decoding_beside_copies_is_compared_with_the_same_tokens_without(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(decode_beside_copies.main, capsys)

    for page_size in (16, 64):
        for name in ("loads", "backups"):
            over = figures[f"TPOT beside {name} over its own, page {page_size}"]
            [tpot] = [
                f
                for title, f in figures.items()
                if title.startswith(f"TPOT beside {name}, page {page_size}, ")
            ]
            assert over["value"] == pytest.approx(tpot["value"] / tpot["baseline"], rel=0.01)


def test_tokens_count_as_beside_a_copy_if_it_was_under_way_all_the_time() -> None:
    stream = answer(first_s=1.0, ended_s=4.5, arrivals_s=(0.5, 1.0, 2.0, 3.0, 4.0, 5.0))
    window = Window(is_load=True, num_pages=9, began_s=0.0, ended_s=2.5)
    later = Window(is_load=True, num_pages=9, began_s=3.0, ended_s=9.0)

    assert decode_beside_copies.beside(stream, [window]).tolist() == [1]
    assert decode_beside_copies.beside(stream, [window, later]).tolist() == [1, 3]


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_decode_tpot_is_measured_for_each_batch(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(decode_tpot.main, capsys)

    for batch in TINY_BATCHES.max_ms:
        assert (
            figures[f"TPOT, batch {batch}"]["value"]
            > figures[f"TPOT, batch {batch}"]["baseline"]
            > 0
        )
    ratios = [figures[f"TPOT over greedy, batch 4, {mode.name}"] for mode in decode_tpot.MODES]
    assert all(figure["value"] > 0 for figure in ratios)


def test_gpu_idle_is_a_part_of_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(gpu_idle.main, capsys)

    assert all(
        0 <= figure["value"] < 1
        for name, figure in figures.items()
        if name in ("idle, batch 1", "idle, batch 4")
    )


def test_bf16_is_compared_with_that_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(bf16_accuracy.main, capsys)

    for model in ("dense", "MoE"):
        assert figures[f"{model}: median of the largest probability"]["value"] >= MIN_TOP1
        ratio = figures[f"{model}: median divergence over that of transformers"]["value"]
        assert 0.1 < ratio < 2 * bf16_accuracy.MAX_RATIO
    for kind in ("divergence, mean", "divergence, median", "relative error of logits"):
        packed = figures[f"MoE, rows as float8: {kind}"]
        assert 0 < packed["baseline"] < packed["value"]


def test_codecs_change_logits_and_their_absence_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = figures_of(codec_logits.main, capsys)

    for page_size in codec_logits.PAGE_SIZES:
        none, int8, fp8 = (
            figures[f"{codec}, page {page_size}: divergence, mean"]
            for codec in ("none", "int8", "fp8")
        )
        assert none["value"] == 0
        assert 0 < int8["value"] < fp8["value"]


@pytest.mark.gpu
def test_bf16_is_as_near_to_float32_as_that_of_transformers(tmp_path: Path) -> None:
    assert bf16_accuracy.main(Options(device="cuda", results=tmp_path)) == 0


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_actors_are_compared_with_one_process(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(actor_overhead.main, capsys)

    assert set(figures) == {
        f"{what}, {streams}"
        for what in ("TTFT", "throughput")
        for streams in ("1 stream", "4 streams")
    }
    assert all(figure["value"] > 0 and figure["baseline"] > 0 for figure in figures.values())


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_two_ranks_are_compared_with_one(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(tensor_parallel.main, capsys)

    names = ("TPOT, batch 1", "TPOT, batch 4", "TTFT, cold", "TTFT, L2 hit")
    assert {f"{name}, 2 ranks over 1" for name in names} <= set(figures)
    for name in names:
        figure = figures[name]
        ratio = figures[f"{name}, 2 ranks over 1"]["value"]
        assert ratio == pytest.approx(figure["value"] / figure["baseline"], rel=0.01)
    load = figures["load"]
    speed = figures["speed of a load, 2 ranks over 1"]["value"]
    assert speed == pytest.approx(load["baseline"] / load["value"], rel=0.01)


def test_steady_tpot_leaves_out_the_time_in_which_requests_are_missing() -> None:
    watched = answer(arrivals_s=(1.0, 2.0, 4.0, 6.0, 10.0), ended_s=10.0, num_tokens=5)
    later = answer(first_s=2.0, ended_s=7.0)

    assert decode_tpot.steady_tpot_ms([watched, later]) == pytest.approx(2000.0)


def test_steady_tpot_needs_requests_that_overlap() -> None:
    with pytest.raises(RuntimeError, match="at the same time"):
        decode_tpot.steady_tpot_ms([answer(), answer(first_s=3.0)])


async def test_a_benchmark_may_run_twice_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()

    async def start(config: EngineConfig, *, name: str) -> AsyncExitStack:
        names.add(name)
        return AsyncExitStack()

    monkeypatch.setattr(AsyncLLM, "start", start)
    for process in (7, 8):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        async with ray_engine(TINY, DENSE_TINY, {}, "turns"):
            pass

    assert names == {"turns-7", "turns-8"}


def test_an_engine_that_is_named_before_it_starts_has_its_own_name_too() -> None:
    names = [aiperf.ENGINE, decode_beside_copies.NAME, http_overhead.ENGINE, start.ENGINE]
    assert all(name.endswith(f"-{os.getpid()}") for name in names)


def test_a_tiny_run_on_virtual_clocks_keeps_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for measure in ("measure_bytes", "measure_room", "measure_hits"):
        monkeypatch.setattr(window_cache, measure, list)
    options = Options(device="cpu", is_tiny=True, results=tmp_path)

    assert window_cache.main(options) == 0

    assert list(tmp_path.iterdir()) == []


def test_another_state_than_meant_is_refused() -> None:
    expect_sources(answer(), l1=4)
    with pytest.raises(RuntimeError, match="expected"):
        expect_sources(answer(), l2=4)


def test_idle_is_what_lies_between_the_passes() -> None:
    passes = [host_pass(0.0, 1.0), host_pass(1.0, 2.5), host_pass(3.0, 4.0)]

    assert gpu_idle.idle_fraction(passes) == pytest.approx(0.125)


def test_host_time_counts_where_the_device_has_run_dry() -> None:
    first = host_pass(0.0, 1.0)
    second = gpu_idle.Pass(gpu_idle.HostStamp(), gpu_idle.HostStamp(), previous=first.ended)
    for each in (first, second):
        each.begin()
        each.end()

    assert first.late_ms == 0.0
    assert second.late_ms > 0.0


def host_pass(began_s: float, ended_s: float) -> gpu_idle.Pass:
    """A pass at these times."""
    return gpu_idle.Pass(gpu_idle.HostStamp(began_s), gpu_idle.HostStamp(ended_s))


def test_bars_hold_for_full_runs_alone() -> None:
    assert TINY.bar(3.0) is None
    assert Options().bar(3.0) == 3.0


def test_floor_counts_each_expert_once_however_large_the_batch() -> None:
    model = MOE_TINY
    few, many = (decode_tpot.floor_ms(model, batch, 0, 1.0) for batch in (1, 1000))

    per_expert = (
        3 * model["hidden_size"] * model["moe_intermediate_size"] * decode_tpot.ELEMENT_BYTES / 1e6
    )
    num_more = model["num_hidden_layers"] * (model["num_experts"] - model["num_experts_per_tok"])
    assert many - few == pytest.approx(num_more * per_expert)


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_throughput_counts_every_token_and_what_the_client_takes(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(lambda options: throughput.main(options, ["moe_l12"], {}), capsys)

    assert figures["output, moe_l12, 12 requests"]["value"] > 0
    for part in ("in steps", "Scheduler's thread", "client"):
        assert 0 < figures[f"{part}, moe_l12, 12 requests"]["value"] < 1


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_throughput_needs_no_model_to_show_what_a_token_takes_around_it(
    ray_cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(lambda options: throughput.main(options, (), {}, 20.0), capsys)

    assert 0 < figures["in steps, steps of 20 ms, 12 requests"]["value"] <= 1
    for part in ("Scheduler's thread", "client"):
        assert figures[f"{part}, for each token, steps of 20 ms, 12 requests"]["value"] > 0
