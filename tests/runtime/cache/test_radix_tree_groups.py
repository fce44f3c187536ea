"""The radix tree when a KV group holds only some pages of a chain: id 0 says that it has none."""

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree
from raydix.runtime.messages.arrays import int32_array

IDENTITY: PageKey = root_key()
TOKENS = list(range(8))


def match(tree: RadixTree, num_pages: int = 8) -> Match:
    return tree.match(IDENTITY, pack_tokens(TOKENS[:num_pages]))


def matched(tree: RadixTree, num_pages: int = 8) -> list[list[int]]:
    return [ids.tolist() for ids in match(tree, num_pages).page_ids]


def insert(tree: RadixTree, *page_ids: list[int]) -> tuple[Insertion, Lock]:
    """Insert the first pages of the chain, from its start, under a new lock."""
    packed = pack_tokens(TOKENS[: len(page_ids[0])])
    lock = tree.lock(tree.match(IDENTITY, b""), 0, now_s=1.0)
    insertion = tree.insert(
        lock,
        packed,
        tuple(map(int32_array, page_ids)),
        extend_keys(IDENTITY, packed, 1),
        segment=Segment.PROMPT,
        now_s=1.0,
    )
    return insertion, lock


def tree_with_gaps() -> RadixTree:
    """The second group has only the last two of four pages."""
    tree = RadixTree(page_size=1, reaches=(None, 2))
    _, lock = insert(tree, [1, 2, 3, 4], [0, 0, 7, 8])
    tree.unlock(lock, last_step=0)
    return tree


def test_a_match_tells_which_pages_each_group_holds() -> None:
    tree = tree_with_gaps()
    assert matched(tree) == [[1, 2, 3, 4], [0, 0, 7, 8]]
    assert matched(tree, 3) == [[1, 2, 3], [0, 0, 7]]
    tree.check()


def test_a_split_and_a_cut_keep_to_each_group_what_it_holds() -> None:
    tree = tree_with_gaps()
    lock = tree.lock(match(tree, 3), 3, now_s=2.0)
    [victim] = tree.evict((1, 0))
    assert [ids.tolist() for ids in victim.page_ids] == [[4], [8]]
    tree.unlock(lock, last_step=0)

    victims = tree.evict((2, 0))
    assert [[ids.tolist() for ids in victim.page_ids] for victim in victims] == [[[2, 3], [0, 7]]]
    assert matched(tree) == [[1], [0]]
    tree.check()


def test_a_page_that_a_group_lacks_is_taken_from_the_next_insertion() -> None:
    tree = tree_with_gaps()
    insertion, lock = insert(tree, [11, 12, 13, 14, 15], [0, 16, 17, 18, 0])
    assert insertion.num_existing_pages == 4
    assert [ids.tolist() for ids in insertion.page_ids] == [[1, 2, 3, 4, 15], [0, 16, 7, 8, 0]]
    assert matched(tree) == [[1, 2, 3, 4, 15], [0, 16, 7, 8, 0]]
    tree.unlock(lock, last_step=0)
    tree.check()


def test_a_match_made_before_keeps_what_it_was_told() -> None:
    tree = tree_with_gaps()
    before = match(tree)
    _, lock = insert(tree, [11, 12, 13, 14], [15, 16, 17, 18])
    assert [ids.tolist() for ids in before.page_ids] == [[1, 2, 3, 4], [0, 0, 7, 8]]
    assert matched(tree) == [[1, 2, 3, 4], [15, 16, 7, 8]]
    tree.unlock(lock, last_step=0)
