"""Keys that are kept are those of the prompt that asks."""

from raydix.ids import RequestId
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.routing.prompt_keys import PromptKeys

A, B = int32_array(range(40)), int32_array(range(1, 41))
NAME = RequestId("r")


def test_an_id_that_stands_for_another_prompt_by_now_has_other_keys() -> None:
    keys = PromptKeys()
    for tokens, salt in ((A, None), (B, None), (B, "x"), (A, None)):
        expected = extend_keys(root_key(cache_salt=salt), pack_tokens(tokens), 4)
        assert keys.of(NAME, tokens, salt, {4}) == {4: expected}
    assert len(keys) == 1


def test_page_sizes_that_come_later_are_hashed_then() -> None:
    keys = PromptKeys()
    first = keys.of(NAME, A, None, {8})
    both = keys.of(NAME, int32_array(range(40)), None, {8, 4})
    assert list(both) == [4, 8]
    assert both[8] is first[8]
    keys.forget(NAME)
    keys.forget(NAME)
    assert len(keys) == 0
