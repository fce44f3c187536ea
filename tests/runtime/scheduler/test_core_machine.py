"""The scheduler core under events in any order, against a naive model of what must be answered."""

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.config.policies import (
    LoadPolicy,
    PrefetchStrategy,
    SchedulingPolicy,
    WritePolicy,
)
from raydix.runtime.config.pool_sizes import least_window_pages
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.request.request import MAX_LOSSES
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import BASE, CLIENT, CoreDriver
from tests.runtime.scheduler.page_census import check_pages

NUM_LANES = 2
MAX_TOKENS = 44
MAX_WAITING = 10
BUDGET_TOKENS = 8
FULL = BASE.layout
SEEN = FULL.groups[0]
WINDOW = replace(SEEN, kind=GroupKind.WINDOW, window=9)
MIXED = replace(FULL, groups=(SEEN, WINDOW))
TWO_WINDOWS = replace(FULL, groups=(replace(WINDOW, window=2), SEEN, replace(WINDOW, window=12)))
ALL_WINDOW = replace(FULL, groups=(WINDOW,))


def token_of(name: str, position: int) -> int:
    """Each request has an answer of its own."""
    return (31 * int(name[1:]) + 7 * position) % 50


@dataclass(slots=True)
class Expected:
    """What the model knows of one request."""

    num_prompt: int
    max_tokens: int
    endings: tuple[str, ...] = ("length",)
    is_listening: bool = True
    salt: str | None = None


class CoreMachine(RuleBasedStateMachine):
    """Every answer is exact, ends once as it must, and leaves nothing behind."""

    @initialize(
        policy=st.sampled_from(SchedulingPolicy),
        write_policy=st.sampled_from(WritePolicy),
        strategy=st.sampled_from(PrefetchStrategy),
        load=st.sampled_from([LoadPolicy.ALWAYS, LoadPolicy.AUTO]),
        layout=st.sampled_from([FULL, FULL, MIXED, MIXED, TWO_WINDOWS, ALL_WINDOW]),
        num_full_pages=st.sampled_from([12, 14, 40]),
        num_spare_pages=st.sampled_from([0, 0, 2, 20]),
        is_chunked=st.booleans(),
        prefix_caching=st.sampled_from([True, True, True, False]),
        lanes_per_group=st.sampled_from([1, NUM_LANES]),
        step_s=st.sampled_from([0.0005, 0.01]),
    )
    def start(
        self,
        *,
        policy: SchedulingPolicy,
        write_policy: WritePolicy,
        strategy: PrefetchStrategy,
        load: LoadPolicy,
        layout: KvLayout,
        num_full_pages: int,
        num_spare_pages: int,
        is_chunked: bool,
        prefix_caching: bool,
        lanes_per_group: int,
        step_s: float,
    ) -> None:
        # Pools of windows have room for one request, and often for no more.
        least = least_window_pages(layout, BUDGET_TOKENS if is_chunked else MAX_TOKENS)
        self.driver = CoreDriver(
            layout=layout,
            num_lanes=NUM_LANES,
            lanes_per_group=lanes_per_group,
            num_pages=tuple([num + num_spare_pages if num else num_full_pages for num in least]),
            prefix_caching=prefix_caching,
            max_model_len=MAX_TOKENS,
            max_running_requests=3,
            max_waiting_requests=MAX_WAITING,
            prefill_budget_tokens=BUDGET_TOKENS,
            chunked_prefill=is_chunked,
            has_host_memory=True,
            policy=policy,
            write_policy=write_policy,
            load=load,
            prefetch=PrefetchSettings(strategy=strategy),
        )
        self.driver.token_of = token_of  # type: ignore[method-assign]
        self.step_s = step_s
        self.expected: dict[str, Expected] = {}
        self.lost: set[int] = set()
        self.num_incarnations = 1
        self.num_losses = 0
        self.has_host = True
        self.num_submitted = 0

    def ended_name(self) -> str | None:
        """The request that came last of those that have ended: its name is free."""
        answers = self.driver.answers
        ended = [
            name for name in self.expected if name in answers and answers[name].ending is not None
        ]
        return ended[-1] if ended else None

    def open_names(self) -> list[str]:
        """Requests that have not ended and whose client still listens."""
        answers = self.driver.answers
        return [
            name
            for name, expected in self.expected.items()
            if expected.is_listening and (name not in answers or answers[name].ending is None)
        ]

    @rule(
        prefix=st.integers(0, 2),
        num_shared=st.integers(1, 30),
        num_own=st.integers(0, 8),
        max_tokens=st.integers(1, 12),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, None, "salt"]),
        uses_name_again=st.booleans(),
    )
    def submit(
        self,
        *,
        prefix: int,
        num_shared: int,
        num_own: int,
        max_tokens: int,
        priority: int,
        salt: str | None,
        uses_name_again: bool,
    ) -> None:
        self.num_submitted += 1
        shared = range(100 * prefix, 100 * prefix + num_shared)
        own = range(1000 * self.num_submitted, 1000 * self.num_submitted + num_own)
        ended = self.ended_name() if uses_name_again else None
        if ended is not None:
            del self.driver.answers[ended], self.expected[ended]

        stats = self.driver.core.stats()
        fields = {"max_tokens": max_tokens, "priority": priority, "cache_salt": salt}
        num_open = sum(self.expected[each].salt == salt for each in self.open_names())
        fields["routing_key"] = [None, "a", "b"][num_own % 3]
        name = self.driver.submit([*shared, *own], name=ended, **fields)
        num_prompt = num_shared + num_own
        self.expected[name] = expected = Expected(
            num_prompt, min(max_tokens, MAX_TOKENS - num_prompt), salt=salt
        )
        num_left = MAX_WAITING - stats["num_requests_waiting"]
        if num_left <= 0:
            expected.endings = ("Overloaded",)
        elif salt is not None and num_open >= num_left:
            # A tenant may have as many waiting as there are places left.
            expected.endings = ("length", "Overloaded")

    @rule(prefix=st.integers(0, 2), lengths=st.lists(st.integers(12, 30), min_size=2, max_size=5))
    def submit_together(self, *, prefix: int, lengths: list[int]) -> None:
        for num_shared in lengths:
            self.submit(
                prefix=prefix,
                num_shared=num_shared,
                num_own=4,
                max_tokens=12,
                priority=0,
                salt=None,
                uses_name_again=False,
            )

    @rule(count=st.integers(1, 6))
    def step_and_copy(self, count: int) -> None:
        for _ in range(count):
            for lane in range(NUM_LANES):
                self.step(lane=lane, count=1)
                self.finish_copies(lane=lane, is_stale=False)

    @precondition(lambda self: self.open_names())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open_names()))
        self.expected[name].endings = ("abort",)
        self.driver.abort(name)

    @precondition(lambda self: self.open_names())
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open_names()))
        self.expected[name].endings = ("stop",)
        self.driver.stop(name)

    @rule()
    def client_vanishes(self) -> None:
        for name in self.open_names():
            self.expected[name].is_listening = False
        self.driver.send(events.ClientGone(client_id=CLIENT))

    @rule(lane=st.integers(0, NUM_LANES - 1), count=st.integers(1, 4))
    def step(self, lane: int, count: int) -> None:
        for _ in range(min(count, len(self.driver.plans[lane]))):
            self.driver.step(lane, seconds=self.step_s)

    @rule(lane=st.integers(0, NUM_LANES - 1), is_stale=st.sampled_from([False, False, False, True]))
    def finish_copies(self, lane: int, is_stale: bool) -> None:
        self.driver.finish_copies(lane, is_stale=is_stale)

    @rule(lane=st.integers(0, NUM_LANES - 1))
    def lose_rank(self, lane: int) -> None:
        if lane not in self.lost:
            self.num_losses += 1
            self.driver.lose_rank(lane)
            self.lost.update(self.driver.core._lanes[lane].step_group.lanes)
            self.num_incarnations += 1

    @rule(lane=st.integers(0, NUM_LANES - 1))
    def link_of_rank_breaks(self, lane: int) -> None:
        if lane not in self.lost:
            incarnation = self.num_incarnations
            self.lose_rank(lane)
            self.driver.attach_rank(lane, incarnation=incarnation)
            if self.driver.settings.lanes_per_group == 1:
                self.lost.discard(lane)

    @rule(count=st.integers(1, NUM_LANES))
    def attach_ranks(self, count: int) -> None:
        for lane in sorted(self.lost)[:count]:
            self.driver.attach_rank(lane, incarnation=self.num_incarnations)
            self.lost.discard(lane)

    @rule()
    def flush(self) -> None:
        self.driver.send(events.FlushL1())

    @rule(duration_s=st.sampled_from([0.001, 0.06, 2.0]))
    def wait(self, duration_s: float) -> None:
        self.driver.wait(duration_s)

    @rule()
    def host_answers(self) -> None:
        self.driver.host_turn()

    @precondition(lambda self: self.has_host)
    @rule(prefix=st.integers(0, 2), num_pages=st.integers(1, 7))
    def l2_gains(self, prefix: int, num_pages: int) -> None:
        self.driver.fill_l2(list(range(100 * prefix, 100 * prefix + 4 * num_pages)))

    @precondition(lambda self: self.has_host)
    @rule(
        prefix=st.integers(0, 2), pages=st.sets(st.integers(0, 6), min_size=1), group=st.integers(0)
    )
    def l2_changes_in_one_group(self, prefix: int, pages: set[int], group: int) -> None:
        keys = split_keys(self.driver.keys(list(range(100 * prefix, 100 * prefix + 28))))
        chosen = b"".join(keys[page] for page in sorted(pages))
        change = self.driver.fill_group if group % 2 else self.driver.drop_from_group
        change(group // 2 % self.driver.settings.num_groups, chosen)

    @precondition(lambda self: self.has_host)
    @rule(prefix=st.integers(0, 2), num_pages=st.integers(1, 7))
    def l2_drops(self, prefix: int, num_pages: int) -> None:
        self.driver.drop_from_l2(
            self.driver.keys(list(range(100 * prefix, 100 * prefix + 28)))[-32 * num_pages :]
        )

    @rule()
    def host_dies_or_returns(self) -> None:
        if self.has_host:
            self.driver.lose_host()
        else:
            self.driver.attach_host()
        self.has_host = not self.has_host

    @precondition(lambda self: self.has_host)
    @rule()
    def link_of_host_breaks(self) -> None:
        self.driver.lose_host()
        self.driver.attach_host()

    @invariant()
    def pages_of_each_pool_are_conserved(self) -> None:
        if hasattr(self, "driver"):
            for lane in self.driver.core._lanes:
                check_pages(lane)

    @invariant()
    def answers_are_exact(self) -> None:
        for name, answer in self.driver.answers.items():
            expected = self.expected[name]
            assert answer.tokens == [
                token_of(name, position) for position in range(len(answer.tokens))
            ]
            assert len(answer.tokens) <= expected.max_tokens
            if answer.tokens:
                assert answer.sources is not None
            if answer.sources is not None:
                assert sum(answer.sources.values()) == expected.num_prompt
            if answer.ending is not None:
                # A request may have run under each of these ranks.
                is_suspect = self.num_losses > MAX_LOSSES
                assert answer.ending in (*expected.endings, *(("EngineDead",) * is_suspect))
            if answer.ending == "length":
                assert len(answer.tokens) == expected.max_tokens

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.attach_ranks(NUM_LANES)
        for _ in range(20):
            self.driver.run()
            self.driver.wait(5.0)
        self.answers_are_exact()
        assert not self.open_names(), "nothing happens any more, but requests wait"
        assert self.driver.core.is_idle
        assert not self.driver.leases
        stats = self.driver.core.stats()
        assert stats["l1_used_pages"] == stats["l1_cached_pages"]
        assert not stats["l1_locked_pages"]


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
