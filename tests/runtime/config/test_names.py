"""What engines and services may be called."""

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.names import check_name, is_engine_name, name_part

WRONG = ("", "bad name", "a/b", "prod/1x", "-a", ".a", "a@b", "a=b", "a*", "é", "a\n", "a" * 101)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_name_is_refused_with_what_one_is(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--name is .*; expected up to 100 letters, digits"):
        check_name(name, "--name")
    assert not is_engine_name(name)


@pytest.mark.parametrize("name", ["a", "prod-2", "9", "Qwen3_8B.v2", "a" * 100])
def test_names_are_taken(name: str) -> None:
    check_name(name, "--name")
    assert is_engine_name(name)
    assert is_engine_name(f"{name}/12")


def test_no_service_has_the_name_of_an_engine_of_one() -> None:
    with pytest.raises(ConfigError, match="--name is 'prod/1'"):
        check_name("prod/1", "--name")
    assert not is_engine_name("prod/")
    assert not is_engine_name("prod/1/2")
    assert not is_engine_name("prod/\u0661")


def test_any_text_can_be_part_of_a_name() -> None:
    assert name_part("org/My model:8b") == "org-My-model-8b"
