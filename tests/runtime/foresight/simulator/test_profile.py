"""Profiles: what a file of times must be like, and what is drawn from it."""

import random
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.foresight.simulator.profile import draw_factor, read_profile
from tests.runtime.foresight.simulator.made_services import PROFILE

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
        with pytest.raises(ConfigError, match=r"profile.json is no profile: step.fixed_s"):
            read_profile(path)


def test_factors_have_the_mean_one() -> None:
    draw = random.Random(1)
    factors = [draw_factor(0.3, draw) for _ in range(20_000)]
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.01)
    assert draw_factor(0.0, draw) == 1.0
