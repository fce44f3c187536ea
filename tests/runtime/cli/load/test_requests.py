"""Workloads that are made up."""

from raydix.runtime.cli.load.requests import MAX_TOKEN_ID, BlockPrompt, Conversations


def test_a_turn_continues_the_one_before_it_which_must_have_ended() -> None:
    chats = Conversations(
        num_conversations=3, num_turns=3, prompt_tokens=16, turn_tokens=4, output_tokens=2
    )
    requests = chats.requests()

    assert len(requests) == 9
    for i, each in enumerate(requests[3:], start=3):
        assert each.after == i - 3
        former = requests[i - 3].prompt
        assert each.prompt[: len(former)] == former
        assert len(each.prompt) == len(former) + 6
    assert [each.is_measured for each in requests] == [False] * 3 + [True] * 6
    assert len({each.prompt for each in requests}) == 9


def test_equal_blocks_are_equal_tokens_and_others_are_not() -> None:
    first = BlockPrompt(block_ids=(7, 8), num_tokens=20, block_tokens=16).token_ids()
    second = BlockPrompt(block_ids=(7, 9, 8), num_tokens=48, block_tokens=16).token_ids()
    assert len(first) == 20
    assert first[:16] == second[:16]
    assert first[16:20] != second[16:20]
    assert max(second) < MAX_TOKEN_ID
