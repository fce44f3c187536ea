"""The oracle of `benchmarks.states`, the cores beside it, and a tiny model that is timed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import states
from benchmarks.engine.state_times import (
    HYBRID_TINY,
    TINY_LOAD,
    floor_ms,
    layout_of,
    weight_elements,
)
from benchmarks.model.model_shapes import write_shape
from benchmarks.states import LAYOUT, PAGE_SIZE, Turn, measure, oracle, read_turns
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.model.checkpoint.dummy import make_dummy_model


def turn(blocks: list[int], num_tokens: int) -> Turn:
    return Turn(block_ids=tuple(blocks), num_tokens=num_tokens, output_tokens=1)


def test_the_oracle_finds_whole_pages_before_the_last_token() -> None:
    turns = [turn([1, 2], 1000), turn([1, 2], 1000), turn([1, 3], 1024), turn([1, 3], 1024)]

    num_found, num_states = oracle(iter(turns))

    assert num_found == 999 // 64 * 64 + 512 + 1023 // 64 * 64
    assert num_states == 1000 // 64 + 512 // 64


def test_a_state_weighs_as_much_as_3216_tokens() -> None:
    assert -(-LAYOUT.state_bytes // LAYOUT.token_bytes) == 3216
    assert LAYOUT.page_size == PAGE_SIZE


def test_cores_find_nearly_what_the_oracle_does() -> None:
    sessions = read_turns(2)
    num_found, num_oracle_states = oracle(each for session in sessions for each in session)
    num_tokens = sum(each.num_tokens for session in sessions for each in session)

    rate, num_states = measure(sessions, l1_bytes=24 << 30, l2_bytes=64 << 30)

    assert rate > 0.97 * num_found / num_tokens
    assert 0 < num_states < 0.2 * num_oracle_states


def test_a_bar_that_is_missed_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(states, "MIN_HIT_RATIO", 1.0)
    monkeypatch.setattr("sys.argv", ["states", "--sessions", "1"])

    assert states.main() == 1
    assert "MISSED" in capsys.readouterr().err


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_hits_and_decodes_of_a_tiny_model_are_timed(
    ray_cluster: PrivateCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["states", "--tiny", "--repeats", "1"])

    assert states.main() == 0

    record = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure["value"] for figure in record["figures"]}
    computed = figures["TTFT, 256 tokens, computed"]
    for tier in ("L1", "L2"):
        hit = figures[f"TTFT, 256 tokens, {tier} hit"]
        over = figures[f"TTFT, 256 tokens, {tier} hit over computed"]
        assert over == pytest.approx(hit / computed, rel=0.01)
    assert 0 < figures["memory's speed reached, batch 4"] < 1


def test_weights_are_those_that_a_step_multiplies_by(tmp_path: Path) -> None:
    loaded = make_dummy_model(
        write_shape(HYBRID_TINY, tmp_path), device=torch.device("cpu"), dtype=torch.float32
    )
    decoder = loaded.decoder
    # Norms, taps and what each head decays by are vectors; the embedding is looked up.
    matrices = {name: each for name, each in decoder.named_parameters() if each.ndim > 1}
    embedding = HYBRID_TINY["vocab_size"] * HYBRID_TINY["hidden_size"]
    num_elements = sum(
        each.numel() for name, each in matrices.items() if not name.endswith("taps_X1K")
    )

    gates = HYBRID_TINY["num_hidden_layers"] * HYBRID_TINY["hidden_size"]
    many = weight_elements(HYBRID_TINY, batch=10_000)
    assert many + gates == num_elements - embedding
    assert weight_elements(HYBRID_TINY, batch=1) < many


def test_states_are_read_and_written_with_each_token() -> None:
    layout = layout_of(HYBRID_TINY, 16, "bfloat16")
    times_ms = [
        floor_ms(HYBRID_TINY, layout, replace(TINY_LOAD, batch=batch, prompt_tokens=tokens), 1.0)
        for batch, tokens in ((10_000, 32), (20_000, 32), (10_000, 132))
    ]

    weights = 2 * weight_elements(HYBRID_TINY, 10_000) / 1e6
    kv = 10_000 * layout.token_bytes / 1e6
    states = 10_000 * 2 * layout.state_bytes / 1e6
    assert times_ms[1] - times_ms[0] == pytest.approx(times_ms[0] - weights)
    assert times_ms[2] - times_ms[0] == pytest.approx(100 * kv)
    assert times_ms[0] == pytest.approx(weights + states + 40 * kv)
