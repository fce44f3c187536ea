"""What engines of a service are called."""

from raydix.runtime.actors.service.names import (
    engine_name,
    next_number,
    number_in,
)


def test_names_say_the_service_and_the_number() -> None:
    assert engine_name("a service", 12) == "a service/12"
    assert number_in("a service", "a service/12") == 12


def test_other_names_are_of_no_service() -> None:
    for name in ("s", "s/", "s/x", "t/1", "s/t/1", "s/-1", "s/\u0661"):
        assert number_in("s", name) is None
    assert number_in("s/t", "s/t/1") == 1


def test_the_next_number_is_new() -> None:
    assert next_number("s", []) == 1
    assert next_number("s", ["s/2", "s/7", "t/9", "s"]) == 8
