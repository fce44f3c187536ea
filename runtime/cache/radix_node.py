"""One run-length node of a radix tree, and what concerns a node and its neighbours alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from raydix.ids import SEVERAL_USERS, PageKey, UserId
from raydix.runtime.cache.eviction_policies import EvictionKey
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.standing import Standing
from raydix.runtime.messages.arrays import Int32Array, empty, frozen, int32_array


class Segment(Enum):
    """Which part of a request filled a page.

    A node holds one kind, so that outputs are evicted before prompts.
    """

    PROMPT = "prompt"
    OUTPUT = "output"


@dataclass(slots=True)
class Victim:
    """Cached pages that no lock protects, next to each other in one chain: evicted, or next to be.

    Once evicted they are the caller's to release.
    """

    page_ids: tuple[Int32Array, ...]
    """The page ids in each KV group; 0 for pages of which the group loses nothing."""
    keys: bytes
    """The page keys, 32 bytes each, concatenated."""
    last_step: int
    """The last step that may name the pages."""
    is_removed: bool = True
    """Whether the run leaves the tree. If not, WINDOW groups lose pages of it, and it stays."""

    @property
    def num_pages(self) -> int:
        """The number of pages, which is the same in every KV group."""
        return len(self.keys) // KEY_BYTES


@dataclass(slots=True, eq=False)
class RadixNode:
    """Owns: pages [start, end) of all chains through it, and their history. Arrays and bytes are
    replaced, never changed in place.

    A root has no parent and no pages; its `keys` is the identity that its chains start from.
    """

    parent: "RadixNode | None"
    edge: bytes
    """The packed tokens of all pages of the node."""
    first_page: bytes
    """The packed tokens of its first page: the very object that is the key in `parent.children`.

    Empty at a root.
    """
    page_ids: tuple[Int32Array, ...]
    """Per KV group one id per page, read-only; 0 where the group holds nothing of the page."""
    keys: bytes
    start: int
    end: int
    segment: Segment
    created_s: float
    last_use_s: float
    priority: int = 0
    """The best (lowest) priority of the requests that inserted at this node or below."""
    num_hits: int = 0
    num_locks: int = 0
    """The number of locks that end at this node or below."""
    last_step: int = 0
    """The last step of requests that have given back their locks that may name its pages."""
    is_left_behind: bool = False
    """Whether the last request that ended here went on with new pages, or none ever ended here."""
    ticket: int = 0
    """The node's place in the eviction order among equal keys; 0 if it has none."""
    eviction_key: EvictionKey = 0.0
    """The key by which the node was put in the eviction order."""
    is_inspected: bool = False
    """Whether the node was handed out for a look ahead, and has not been used since then."""
    num_inspected_children: int = 0
    """The number of the node's children that are inspected: once all are, it goes after them."""
    is_cut: bool = False
    """Whether it has lost pages of its end: it grows no more, so that matches of them are refused.
    """
    user: UserId | None = None
    """The only user whose requests have ended with pages of the node; None: none has."""
    standing: Standing | None = None
    """What is known of its next use, beside the last one."""
    turn: int = 0
    """The number of requests that had ended in its chain before the one that brought the node."""
    kind: int = 0
    worth_s: float = 0.0
    """What its last use has made of it: a kind of pages, and how long that is worth keeping."""
    deepest: int = 0
    """The most pages that a chain through the node has had, those that are gone included.

    `tlru` alone asks for it.
    """
    is_spare: bool = False
    """Whether the next prompt of its chain has little to compute without it, for `tlru` alone."""
    children: "dict[bytes, RadixNode]" = field(default_factory=dict)
    """The nodes below this one, by the packed tokens of their first page."""

    @property
    def num_pages(self) -> int:
        """The number of pages of this node alone."""
        return self.end - self.start

    @property
    def is_hollow(self) -> bool:
        """Whether no group holds any page of the node."""
        return not any(ids.any() for ids in self.page_ids)

    def may_grow(self, segment: Segment) -> bool:
        """Whether pages that its one lock inserts become part of the node, not one below it."""
        is_own = self.num_hits == self.num_locks == 1 and not self.is_cut
        is_leaf = not self.children and self.parent is not None
        return is_own and is_leaf and self.segment is segment

    @property
    def is_return_point(self) -> bool:
        """Whether a request is likely to end its match where the node ends.

        Its chain ends there, or chains part, or a request did not go on from there since.
        """
        return len(self.children) != 1 or not self.is_left_behind

    def leave_behind(self) -> None:
        """Note that a request whose match ended with the node has gone on with new pages."""
        self.is_left_behind = True

    def come_back(self) -> None:
        """Note that a request has ended with the node."""
        self.is_left_behind = False

    @property
    def last_key(self) -> PageKey:
        """The key of the node's last page, or the identity at a root."""
        return PageKey(self.keys[-KEY_BYTES:])

    def use(self, now_s: float) -> None:
        """Note a use of the node's pages."""
        self.last_use_s = now_s
        self.standing = None

    def value(self, kind: int, worth_s: float) -> None:
        """Note what a use makes of the node's pages."""
        self.kind, self.worth_s = kind, worth_s

    def reach(self, deepest: int) -> None:
        """Note that a chain through the node has had so many pages."""
        self.deepest = max(self.deepest, deepest)

    def spare(self, *, num_needed: int) -> None:
        """Note how many of its chain's first pages a next prompt needs."""
        self.is_spare = self.start >= num_needed

    def claim(self, user: UserId) -> None:
        """Note that a request of this user has ended with the node's pages."""
        if self.user not in (None, user):
            user, self.standing = SEVERAL_USERS, None
        self.user = user

    def stand(self, standing: Standing | None) -> None:
        """Note what is known of the node's next use."""
        self.standing = standing

    def lock(self) -> bool:
        """Count a lock and a hit. Returns whether it is the only lock."""
        self.num_locks += 1
        self.num_hits += 1
        return self.num_locks == 1

    def unlock(self, last_step: int) -> bool:
        """Count one lock less. Returns whether none is left."""
        self.num_locks -= 1
        self.last_step = max(self.last_step, last_step)
        return not self.num_locks

    def enter_order(self, ticket: int, key: EvictionKey) -> None:
        """Note that the node is evictable, and which place it has in the eviction order."""
        self.ticket, self.eviction_key = ticket, key

    def leave_order(self) -> None:
        """Note that the node has left the eviction order."""
        self.ticket = 0

    def note_inspection(self) -> None:
        """Note that the node is handed out for a look ahead."""
        assert self.parent is not None
        self.is_inspected = True
        self.parent.num_inspected_children += 1

    def end_inspection(self) -> None:
        """Note that the node has been used, or has left the tree."""
        assert self.parent is not None, "a root has no pages to inspect"
        self.is_inspected = False
        self.parent.num_inspected_children -= 1

    @property
    def is_to_be_inspected(self) -> bool:
        """Whether a node that was not inspected is held by nothing but children that were."""
        is_free = self.parent is not None and not self.num_locks and not self.is_inspected
        return is_free and self.num_inspected_children == len(self.children)

    def grow(self, run: "RadixNode") -> None:
        """Append the pages of a node that is not attached."""
        self.edge += run.edge
        self.page_ids = join_page_ids((self.page_ids, run.page_ids), run.end - self.start)
        self.keys += run.keys
        self.end = run.end

    def fill(self, page_ids: tuple[Int32Array, ...]) -> bool:
        """Take over pages, one id per page and group, of which a group holds nothing so far.

        Returns whether it lacked any.
        """
        if all(ids.all() for ids in self.page_ids):
            return False
        pairs = zip(self.page_ids, page_ids, strict=True)
        self.page_ids = tuple([int32_array(np.where(own, own, new)) for own, new in pairs])
        return True

    def fill_from(self, first: int, page_ids: tuple[Int32Array, ...]) -> bool:
        """Call `fill` for the pages from `first` on alone, counted from the node's start."""
        unfilled = np.zeros(first, dtype=np.int32)
        return self.fill(tuple([np.concatenate((unfilled, ids)) for ids in page_ids]))

    def give_up(self, group: int, first: int, stop: int) -> Victim:
        """Lose pages [first, stop), counted from the node's start, in one WINDOW group."""
        kept = self.page_ids[group].copy()
        kept[first:stop] = 0
        nothing = frozen(np.zeros(stop - first, dtype=np.int32))
        lost = [nothing] * len(self.page_ids)
        lost[group] = self.page_ids[group][first:stop]

        groups = list(self.page_ids)
        groups[group] = frozen(kept)
        self.page_ids = tuple(groups)
        keys = self.keys[first * KEY_BYTES : stop * KEY_BYTES]
        # A window moves on with what has been acknowledged: of those who still hold a lock here no
        # step on its way looks back so far.
        return Victim(tuple(lost), keys, self.last_step, is_removed=False)

    def attach(self, run: "RadixNode") -> None:
        """Take a node that continues this one as a child."""
        self.children[run.first_page] = run

    def as_victim(self) -> Victim:
        """The node's pages as a victim; no lock may hold them."""
        return Victim(self.page_ids, self.keys, self.last_step)

    def leave(self) -> Victim:
        """Leave the tree with all pages: a match that still names it finds none here.

        It keeps its parent, for such a match may lie above its pages, and finds them there.
        """
        assert self.parent is not None, "a root has no pages to give up"
        victim = self.as_victim()
        del self.parent.children[self.first_page]
        self.end = self.start
        return victim


def chain_keys(node: RadixNode | None) -> bytes:
    """Keys of all pages from the first one to the end of `node`, 32 bytes each."""
    parts = []
    while node is not None and node.parent is not None:
        parts.append(node.keys)
        node = node.parent
    return b"".join(reversed(parts))


def use_path(node: RadixNode, priority: int, now_s: float) -> None:
    """Count a use of `node` and of all above it, by a request of this priority."""
    current: RadixNode | None = node
    while current is not None:
        # What a run leaves at its end may be older than another use of its prefix.
        current.use(max(current.last_use_s, now_s))
        current.priority = min(current.priority, priority)
        current = current.parent


def take_back_hit(node: RadixNode | None) -> None:
    """Undo one hit of `node` and of all above it: the lock that counted it came to nothing."""
    while node is not None:
        node.num_hits -= 1
        node = node.parent


def new_root(identity: PageKey, num_groups: int, now_s: float) -> RadixNode:
    """The node from which all chains of an identity start."""
    return RadixNode(
        parent=None,
        edge=b"",
        first_page=b"",
        page_ids=(empty(),) * num_groups,
        keys=identity,
        start=0,
        end=0,
        segment=Segment.PROMPT,
        created_s=now_s,
        last_use_s=now_s,
    )


def split_node(node: RadixNode, end: int, page_bytes: int) -> RadixNode:
    """Move the pages before `end` into a new node above, which is returned, with equal history."""
    assert node.parent is not None, "a root has no pages to split"

    num_upper = end - node.start
    num_bytes = num_upper * page_bytes
    upper = RadixNode(
        parent=node.parent,
        edge=node.edge[:num_bytes],
        first_page=node.first_page,
        page_ids=tuple(int32_array(ids[:num_upper]) for ids in node.page_ids),
        keys=node.keys[: num_upper * KEY_BYTES],
        start=node.start,
        end=end,
        segment=node.segment,
        created_s=node.created_s,
        last_use_s=node.last_use_s,
        priority=node.priority,
        num_hits=node.num_hits,
        num_locks=node.num_locks,
        last_step=node.last_step,
        is_left_behind=True,
        user=node.user,
        standing=node.standing,
        turn=node.turn,
        kind=node.kind,
        worth_s=node.worth_s,
        deepest=node.deepest,
        is_spare=node.is_spare,
        is_inspected=node.is_inspected,
        num_inspected_children=int(node.is_inspected),
    )

    node.parent.children[node.first_page] = upper
    node.parent = upper
    node.edge = node.edge[num_bytes:]
    node.first_page = node.edge[:page_bytes]
    node.page_ids = tuple(int32_array(ids[num_upper:]) for ids in node.page_ids)
    node.keys = node.keys[num_upper * KEY_BYTES :]
    node.start = end
    upper.children[node.first_page] = node
    return upper


def cut_tail(node: RadixNode, num_pages: int, page_bytes: int) -> Victim:
    """Take the last `num_pages` pages off a leaf that keeps some."""
    num_kept = node.num_pages - num_pages
    assert num_kept > 0, "a leaf without pages is removed"
    page_ids = tuple([ids[num_kept:] for ids in node.page_ids])
    tail = Victim(page_ids, node.keys[num_kept * KEY_BYTES :], node.last_step)

    node.edge = node.edge[: num_kept * page_bytes]
    node.page_ids = tuple([ids[:num_kept] for ids in node.page_ids])
    node.keys = node.keys[: num_kept * KEY_BYTES]
    node.end -= num_pages
    node.is_cut = True
    return tail


def join_page_ids(runs: Sequence[tuple[Int32Array, ...]], num_pages: int) -> tuple[Int32Array, ...]:
    """Per KV group, the first `num_pages` ids of the runs one after another, as one new array."""
    return tuple([np.concatenate(group)[:num_pages] for group in zip(*runs, strict=True)])
