"""Watches which ends of conversations L1 spares under `tlru`, page by page instead of by nodes."""

from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.radix_node import RadixNode, Victim, chain_keys
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.scheduler.core import SchedulerCore


class WronglySpared(AssertionError):
    """L1 would keep what a next prompt can do without, or give up what it needs."""


class EndsWatch:
    """Follows one tree from its start on, by the calls that its eviction gets."""

    def __init__(self, tree: RadixTree) -> None:
        assert not tree.num_nodes, "a tree is watched from its start on"
        self.tree = tree
        self._num_requests = self._num_new = 0
        self._deepest: dict[bytes, int] = {}
        """The most pages that a chain has had, by the key of each of its pages that is there."""
        self._spare: dict[bytes, bool] = {}
        """Whether a next prompt can do without, by the key of a page, as of its last use."""
        eviction = tree._eviction
        self._lock_path, self._note_new = eviction.lock_path, eviction.note_new
        self._use_path, self._remove, self._cut = (
            eviction.use_path,
            eviction._remove,
            eviction._cut,
        )
        vars(eviction).update(
            lock_path=self._sees_lock,
            note_new=self._sees_new,
            use_path=self._sees_use,
            _remove=self._sees_end,
            _cut=self._sees_cut,
        )

    def _sees_lock(self, node: RadixNode, now_s: float) -> int:
        self._num_requests += 1
        return self._lock_path(node, now_s)

    def _sees_new(self, num_pages: int) -> None:
        self._num_new += num_pages
        self._note_new(num_pages)

    def _sees_use(self, node: RadixNode, priority: int, now_s: float, turn: int) -> None:
        self._use_path(node, priority, now_s, turn)
        for key in split_keys(chain_keys(node)):
            self._deepest[key] = max(self._deepest.get(key, 0), node.end)
        current: RadixNode | None = node
        while current is not None and current.parent is not None:
            keys = split_keys(current.keys)
            num_needed = self._deepest[keys[0]] - self._num_new // self._num_requests
            self._spare.update(dict.fromkeys(keys, current.start >= num_needed))
            current = current.parent

    def _sees_end(self, leaf: RadixNode) -> Victim:
        return self._forget(self._remove(leaf))

    def _sees_cut(self, leaf: RadixNode, num_pages: int) -> Victim:
        return self._forget(self._cut(leaf, num_pages))

    def _forget(self, victim: Victim) -> Victim:
        for key in split_keys(victim.keys):
            del self._deepest[key], self._spare[key]
        return victim

    def check(self) -> None:
        """Raise WronglySpared unless what waits to go is spared as its last use says."""
        for node in self.tree.forest:
            key = split_keys(node.keys)[0]
            if node.deepest != self._deepest[key]:
                raise WronglySpared(
                    f"pages are of chains of {node.deepest}; expected {self._deepest[key]}"
                )
            if node.is_spare is not self._spare[key]:
                raise WronglySpared(f"pages are spare: {node.is_spare}; expected the opposite")
            if node.ticket and node.standing is None:
                expected = (not self._spare[key], node.last_use_s)
                if node.eviction_key != expected:
                    raise WronglySpared(f"pages go by {node.eviction_key}; expected by {expected}")


class EndsWatches:
    """Watches all trees of an engine, where the policy is `tlru`: a lane gets new ones."""

    def __init__(self, core: SchedulerCore) -> None:
        is_watched = core.settings.eviction is EvictionPolicy.TLRU
        self._lanes = core._lanes if is_watched else []
        self._watches = [EndsWatch(lane.l1.tree) for lane in self._lanes]

    def after_event(self) -> None:
        """Watch the trees that are new."""
        for index, lane in enumerate(self._lanes):
            if self._watches[index].tree is not lane.l1.tree:
                self._watches[index] = EndsWatch(lane.l1.tree)

    def check(self) -> None:
        """Raise WronglySpared unless each tree spares what it should."""
        for watch in self._watches:
            watch.check()
