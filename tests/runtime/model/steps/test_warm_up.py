from raydix.runtime.model.steps.warm_up import warm_up_rows


def test_rows_end_within_the_longest_context_and_include_the_longest_prompt() -> None:
    rows = list(warm_up_rows(100, 300))

    assert all(num_tokens >= 1 and start >= 0 for num_tokens, start in rows)
    assert max(num_tokens for num_tokens, _ in rows) == 100
    assert max(num_tokens + start for num_tokens, start in rows) == 256


def test_rows_cross_every_power_of_two() -> None:
    rows = list(warm_up_rows(100, 300))

    assert {15, 16, 31, 32, 63, 64} <= {num_tokens for num_tokens, start in rows if not start}
    assert {(1, context - 1) for context in (1, 2, 4, 8, 256)} <= set(rows)
