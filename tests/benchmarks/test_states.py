"""The oracle of `benchmarks.states`, and the cores beside it."""

import pytest

from benchmarks import states
from benchmarks.states import LAYOUT, PAGE_SIZE, Turn, measure, oracle, read_turns


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

    rate, num_states = measure(sessions, l1_tokens=1_000_000, l1_states=64, l2_bytes=64 << 30)

    assert rate > 0.97 * num_found / num_tokens
    assert 0 < num_states < 0.2 * num_oracle_states


def test_a_bar_that_is_missed_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(states, "MIN_HIT_RATIO", 1.0)
    monkeypatch.setattr("sys.argv", ["states", "--sessions", "1"])

    assert states.main() == 1
    assert "MISSED" in capsys.readouterr().err
