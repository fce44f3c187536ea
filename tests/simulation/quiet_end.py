"""The quiet end of a run: all is well again, and prompts show which tiers are used again.

The laws are in `reuse_laws.py`; here prompts are asked for one after the other, each after a flush.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import count

from raydix.ids import RequestId
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy, WritePolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler import events
from tests.simulation.client_links import Answer
from tests.simulation.cluster import Cluster
from tests.simulation.modelled_tokens import VOCABULARY
from tests.simulation.reuse_laws import Law, Probe
from tests.simulation.stored_prefix import (
    has_made_way,
    l2_names,
    l2_pages,
    l3_names,
    num_stored_tokens,
)

_HEALED_S = 150.0
"""More than twice any back-off: by then every tier that is well is to be used again."""
_WRITTEN_S = 30.0
"""Within this time pages are copied to L2, and written to an idle L3."""
_FIRST_SEED = 1_000_000
"""Ranks know requests by their seeds, which those of the clients before have used."""
_NUM_RETURNING = 2
_OWN_SALT = "forked"
"""L3 has no page under it yet: it may hold bad objects of earlier prompts that begin alike, and
while L2 has these pages nothing reads them.
"""
_LONGEST_SHARED = 48
_SPARE_PAGES = 8
_SPARE_DIVISOR = 4
"""What of L2 is granted for backups or being written: so many pages, or one in so many if more."""
_SLOW_READ_S = 3.0
_TOKEN_S = 0.01
_QUICK_BYTES_PER_S = 1e9
_SLOWNESS = 1.3
"""How many times as long as to compute the same it takes to load it; to try that is cheap."""
_NUM_QUICK_LOADS = 2
_NUM_SLOW_LOADS = 3
"""The third is believed."""
_NUM_LOADS = 8
_FLUSHED_S = 1.0
_BETWEEN_LOADS_S = 3.0
"""The time between loads, in all shorter than what is believed of loads takes to be forgotten by
itself.
"""


class QuietEnd:
    """Owns: the prompts that are asked for at the end of a run, and what became of each."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._settings = cluster.settings
        self._random = random.Random(seed)
        self._numbers = count()
        self._num_forks = 0
        self.probes: list[Probe] = []
        self.num_unwritten = 0
        """Pages of L2 that L3 lacked when all had been well for long."""

    def run(self) -> list[Probe]:
        """Ask, as far as this cluster has the tiers for it."""
        cluster = self._cluster
        cluster.faults.quieten()
        # A Scheduler finds out that a rank hangs when a step waits for it, and until then copies
        # wait for that step: what L1 has computed meanwhile is lost with the ranks.
        cluster.end_hung_ranks()
        cluster.on_ending = lambda answer: None
        self._wait(_HEALED_S)
        self.num_unwritten = len(l2_names(cluster.node) - l3_names(cluster.node))
        if not self._settings.prefix_caching:
            return self.probes

        self._ask_returning()
        part = self._random.choice([self._ask_forked, self._ask_forked, self._ask_slow])
        if self._settings.load is LoadPolicy.AUTO:
            part = self._random.choice([part, self._ask_loads])
        part()
        return self.probes

    def _ask_returning(self) -> None:
        """What L3 holds of prompts that were asked before is used again."""
        if self._cluster.node.storage is None:
            return
        known = {
            (tuple(answer.submit.token_ids.tolist()), answer.submit.cache_salt)
            for answer in self._cluster.history
            if answer.ending == "length"
        }
        for prompt, salt in self._random.sample(sorted(known, key=repr), len(known))[
            :_NUM_RETURNING
        ]:
            self._ask_from_storage(list(prompt), salt)

    def _ask_from_storage(self, prompt: list[int], cache_salt: str | None = None) -> None:
        self._flush()
        num_expected = num_stored_tokens(self._cluster, prompt, cache_salt)
        if not self._has_room(prompt) or not self._is_fetched(num_expected):
            return
        self._announce(prompt, cache_salt)
        self._ask(Law.STORED, prompt, num_expected, cache_salt)

    def _ask_forked(self) -> None:
        """A prefix that two requests shared is there for the third, wherever it ends."""
        settings = self._settings
        num_tokens = self._random.randrange(1, min(_LONGEST_SHARED, settings.max_model_len // 2))
        shared = self._tokens(num_tokens)
        num_expected = num_tokens // settings.page_size * settings.page_size
        is_selective = settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        num_uses = max(2, settings.write_threshold) if is_selective else 2
        former = l2_pages(self._cluster.node)
        for number in range(num_uses):
            if number:
                self._wait(_WRITTEN_S)
                self._random.choice([self._flush, self._flush_l1, lambda: None])()
            self._ask(Law.FIRST, self._forked(shared), 0, _OWN_SALT)
        if not settings.has_host_memory or not self._has_room(shared):
            return
        if settings.write_policy is WritePolicy.WRITE_BACK:
            return

        self._wait(_WRITTEN_S)
        if has_made_way(self._cluster.node, shared, _OWN_SALT, former):
            return
        self._flush_l1()
        self._ask(Law.FORKED, self._forked(shared), num_expected, _OWN_SALT)
        if not self._is_fetched(num_expected):
            return
        self._wait(_WRITTEN_S)
        prompt = self._forked(shared)
        self._flush()
        self._announce(prompt, _OWN_SALT)
        self._ask(Law.FORKED, prompt, num_expected, _OWN_SALT)

    def _ask_slow(self) -> None:
        """A storage that has become slow for good, and never fails, is used all the same."""
        storage = self._cluster.node.storage
        # What takes longer the storage actor would have to break off.
        if storage is None or storage.deadline_s < 2 * _SLOW_READ_S:
            return
        prompts = [self._tokens(self._random.randrange(8, _LONGEST_SHARED)) for _ in range(3)]
        for prompt in prompts:
            self._ask(Law.FIRST, prompt, 0)
            self._ask(Law.FIRST, prompt, 0)
        self._wait(_WRITTEN_S)
        # By the way in which pages are written, L3 may have only some of them. One that is not read
        # from L3 would not show how slow that is.
        prompts = [prompt for prompt in prompts if self._is_read(prompt)]
        if not prompts:
            return
        self._cluster.faults.storage_lag_s = _SLOW_READ_S
        # The first one may be given up: nobody knew how slow it would be.
        self._flush()
        self._announce(prompts[0])
        self._ask(Law.FIRST, prompts[0], 0)
        self._wait(_HEALED_S)
        for prompt in prompts[1:]:
            self._ask_from_storage(prompt)

    def _ask_loads(self) -> None:
        """Check that few hits are computed instead of loaded after loads were slow for a while."""
        settings = self._settings
        if not settings.has_host_memory or settings.write_policy is not WritePolicy.WRITE_THROUGH:
            return
        # What is believed at the start has to be too quick, or nothing is ever tried.
        if settings.start_load_bytes_per_s < _QUICK_BYTES_PER_S:
            return
        num_tokens = min(_LONGEST_SHARED, settings.max_model_len - 2)
        prompts = [self._tokens(num_tokens) for _ in range(3)]
        if not self._has_room(prompts[0]):
            return
        faults = self._cluster.faults
        faults.token_s = _TOKEN_S
        for prompt in prompts:
            self._ask(Law.FIRST, prompt, 0)
        for _ in range(_NUM_QUICK_LOADS):
            self._ask_from_l2(Law.FIRST, prompts[-1])
        faults.load_lag_s = _SLOWNESS * num_tokens * _TOKEN_S
        for _ in range(_NUM_SLOW_LOADS):
            self._ask_from_l2(Law.FIRST, prompts[-1])
        faults.load_lag_s = 0.0
        for _ in range(_NUM_LOADS):
            self._ask_from_l2(Law.LOADED, prompts[-1])

    def _ask_from_l2(self, law: Law, prompt: list[int]) -> None:
        self._wait(_BETWEEN_LOADS_S)
        self._flush_l1()
        self._ask(law, prompt, 0)

    def _is_read(self, prompt: list[int]) -> bool:
        """L3 has as much of it as is worth a read, and L2 has room for that."""
        num_stored = num_stored_tokens(self._cluster, prompt, None)
        return self._has_room(prompt) and self._is_fetched(num_stored)

    def _is_fetched(self, num_tokens: int) -> bool:
        """Whether so many tokens are worth a read from L3, for a request or as a hint."""
        storage = self._cluster.node.storage_settings
        if storage is None or num_tokens < storage.min_tokens:
            return False
        return self._awaits_all or storage.staged_grace_s >= _WRITTEN_S

    @property
    def _awaits_all(self) -> bool:
        return self._settings.prefetch.strategy is PrefetchStrategy.WAIT_COMPLETE

    def _has_room(self, prompt: list[int]) -> bool:
        """L2 has room for it, and once more for what L3 brings for a hint."""
        num_pages = -(-len(prompt) // self._settings.page_size)
        num_times = 2 if self._awaits_all else 4
        num_l2_pages = self._cluster.node.num_l2_pages
        num_spare = max(_SPARE_PAGES, num_l2_pages // _SPARE_DIVISOR)
        return num_times * num_pages + num_spare <= num_l2_pages

    def _tokens(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(VOCABULARY) for _ in range(num_tokens)]

    def _forked(self, shared: list[int]) -> list[int]:
        """What follows differs at once from what did the last few times."""
        self._num_forks += 1
        tail = self._tokens(self._random.randrange(8))
        return [*shared, self._num_forks % VOCABULARY, *tail]

    def _announce(self, prompt: list[int], cache_salt: str | None = None) -> None:
        """Bring what L3 has of it to L2, unless the request itself is going to wait for that."""
        if self._awaits_all:
            return
        link = self._cluster.client("prober")
        hint = PrefetchPrompt(
            asking=link.next_asking(),
            request_id=RequestId(f"hint {next(self._numbers)}"),
            token_ids=int32_array(prompt),
            cache_salt=cache_salt,
        )
        self._await(self._cluster.prefetch(hint, "prober"))

    def _ask(
        self, law: Law, prompt: list[int], num_expected: int, cache_salt: str | None = None
    ) -> None:
        link, number = self._cluster.client("prober"), next(self._numbers)
        message = SubmitRequest(
            asking=link.next_asking(),
            request_id=RequestId(f"probe {number}"),
            token_ids=int32_array(prompt),
            sampling=DeviceSampling(seed=_FIRST_SEED + number),
            max_tokens=1,
            cache_salt=cache_salt,
        )
        answer = self._cluster.submit(message, "prober")
        self._await(answer)
        self.probes.append(
            Probe(
                law=law,
                num_expected=num_expected,
                sources=answer.sources or {},
                prompt=tuple(prompt),
            )
        )

    def _await(self, answer: Answer) -> None:
        limit_s = self._cluster.now_s + 1000.0
        self._cluster.run(partial(_has_ended, answer), limit_s=limit_s)
        assert answer.ending is not None, f"{answer.asked} waits for ever"

    def _flush(self) -> None:
        self._cluster.node.to_host(host_events.FlushHost())
        self._flush_l1()

    def _flush_l1(self) -> None:
        """Flushes go on in pieces."""
        self._cluster.to_core(events.FlushL1())
        self._wait(_FLUSHED_S)

    def _wait(self, duration_s: float) -> None:
        self._cluster.run_until(self._cluster.now_s + duration_s)


def _has_ended(answer: Answer) -> bool:
    return answer.ending is not None
