"""A pin is found by its prompt."""

from raydix.runtime.api.pin_names import is_pin_of, new_pin_name
from raydix.runtime.messages.arrays import int32_array

PROMPT = int32_array([1, 2, 3])


def test_a_name_tells_its_prompt_and_no_two_are_equal() -> None:
    names = [new_pin_name(PROMPT, "a") for _ in range(3)]
    assert len(set(names)) == 3
    assert all(is_pin_of(name, PROMPT, "a") for name in names)


def test_a_name_is_of_no_other_prompt() -> None:
    name = new_pin_name(PROMPT, "a")
    for other in ([1, 2], [1, 2, 3, 4], [3, 2, 1], []):
        assert not is_pin_of(name, int32_array(other), "a")


def test_a_name_is_of_no_other_salt() -> None:
    name = new_pin_name(PROMPT, "a")
    assert not any(is_pin_of(name, PROMPT, salt) for salt in ("b", "", None))
