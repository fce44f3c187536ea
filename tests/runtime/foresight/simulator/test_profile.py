"""Profiles: what a file of times must be like, and what is drawn from it."""

import random
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.foresight.simulator.profile import draw_factor, read_profile
from raydix.runtime.foresight.simulator.simulation import Simulation
from raydix.runtime.foresight.simulator.world import Rules
from tests.runtime.foresight.simulator.made_services import PROFILE, made_service, made_sessions

ROOT = Path(__file__).resolve().parents[4]


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.model_dump_json())
    assert read_profile(path) == PROFILE


def test_profiles_of_the_project_can_be_read() -> None:
    paths = sorted((ROOT / "configs" / "profiles").glob("*.json"))
    assert [read_profile(path).name for path in paths] == [path.stem for path in paths]


def test_errors_name_the_file_and_the_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_profile(tmp_path / "absent.json")
    path = tmp_path / "profile.json"
    for wrong in ("-1.0", "1e999", "NaN"):
        text = PROFILE.model_dump_json().replace('"fixed_s":0.002', f'"fixed_s":{wrong}', 1)
        path.write_text(text)
        with pytest.raises(
            ConfigError, match=r"profile.json is no profile: step.fixed_s: .*it is "
        ):
            read_profile(path)


def test_a_file_that_is_no_text_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b'{"name": "\xff"}')

    with pytest.raises(ConfigError, match=r"profile.json is no profile: the file: Invalid JSON"):
        read_profile(path)


def test_steps_that_take_no_time_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(
        '{"name": "all", "step": {"fixed_s": 0, "prompt_token_s": 0}, "link_s": 0, "client_s": 0,'
        ' "load": {"bytes_per_s": 1e99}, "backup": {"bytes_per_s": 1e99}}'
    )
    with pytest.raises(ConfigError, match=r"no profile: step: .*time would else stand still"):
        read_profile(path)
    path.write_text(path.read_text().replace('"fixed_s": 0', '"fixed_s": 1e-9'))
    requests = made_sessions(4, 2, gap_s=0.0, num_answer_tokens=400)
    outcome = Simulation(made_service(), read_profile(path), requests, Rules()).run()
    assert outcome.answer_tokens == 8 * 400


def test_factors_have_the_mean_one() -> None:
    draw = random.Random(1)
    factors = [draw_factor(0.3, draw) for _ in range(20_000)]
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.01)
    assert draw_factor(0.0, draw) == 1.0
