"""A modelled GPU actor: pages hold hashes of token prefixes, copies finish out of order."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import FromRank, PageCopies, StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan
from tests.simulation.experts import ExpertCopy, SimulatedExperts
from tests.simulation.grammars import RankGrammars
from tests.simulation.modelled_rows import ModelledRow, Pages, change_tables
from tests.simulation.modelled_tokens import prefix_hashes
from tests.simulation.not_finite import NotFinite
from tests.simulation.page_copy import PageCopy, StrayWrite, by_transfer
from tests.simulation.page_parts import PageParts
from tests.simulation.prompt_scores import PromptScores

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

_DRAIN_S = 0.5
"""How long a rank without a link waits for the copies of its peers before it ends."""


class SimulatedRank:
    """Owns: the pages and slots of one rank. Plans go in order; copies run beside them.

    A step in which any rank of its step group has tokens begins when all of these have come to it.
    When its link breaks it finishes, unheard, what had arrived, forgets its requests and says hello
    again.
    """

    def __init__(self, cluster: Cluster, rank: int, incarnation: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.part = rank % cluster.settings.ranks_per_lane
        """Which part of a host page this rank reads and writes: its own heads."""
        self.parts = PageParts(cluster.settings, self.part)
        self.incarnation = incarnation
        self.pid = cluster.processes.start()
        self.is_alive = True
        self.exit_s = float("inf")
        self._link: Link | None = None
        self._is_resting = False
        self._num_dials = 0
        size = cluster.settings.page_size
        self.pages: Pages = [
            [[None] * size for _ in range(num_pages + 1)]
            for num_pages in cluster.settings.num_pages
        ]
        self.tokens: dict[int, list[int]] = {}
        self.hashes: dict[int, list[int]] = {}
        self.tables: dict[int, list[dict[int, int]]] = {}
        """The block tables of each slot, per KV group."""
        lane = rank // cluster.settings.ranks_per_lane
        self.not_finite = NotFinite(f"{lane} {incarnation}")
        self.scores, self.grammars = PromptScores(), RankGrammars()
        self.loading: set[int] = set()
        self.stale: set[int] = set()
        """Loads that read pages which had changed hands: nothing computed on them may count."""
        self.plans: deque[StepPlan] = deque()
        self.standing = StandingPlan(rank)
        self.is_stepping = False
        self._num_copying = 0
        """Transfers under way."""
        self._shares: dict[int, set[int]] = {}
        """The peers whose shares of a load's latent pages are all in this rank's pages, by load."""
        self._copied_loads: dict[int, partial[None]] = {}
        """The loads of which this rank has copied its own share, and how they end."""
        shared = cluster.settings.experts
        width = cluster.settings.ranks_per_group
        self.experts = None if shared is None else SimulatedExperts(shared, rank % width)
        self._dial()

    def _dial(self) -> None:
        self._num_dials = number = self._num_dials + 1

        def is_wanted() -> bool:
            is_away = self._is_resting or self._link is not None
            return self.is_alive and not is_away and number == self._num_dials

        self.cluster.scheduler.connect(self._use, is_wanted)

    def rest(self) -> None:
        """Hang up, as nothing is in flight; pages are lost by the time that it comes back."""
        self._is_resting = True
        if self._link is not None:
            self._link.close()
        self._forget_if_drained()

    def rise(self) -> None:
        """Have empty pages, and say hello again."""
        if self._is_resting:
            self._is_resting = False
            self.pages = [[[None] * len(page) for page in pages] for pages in self.pages]
            self._forget_if_drained()

    def _use(self, link: Link) -> None:
        self._link = link
        link.listen(End.DIALLER, self._arrive, self._lose_link)
        link.carry(End.ACCEPTOR, lambda: self.cluster.scheduler.accept_rank(link, self))

    def kill(self, linger_s: float) -> None:
        """No message leaves any more; copies that would end within `linger_s` still write."""
        self.is_alive = False
        self.exit_s = self.cluster.now_s + linger_s
        if self._link is not None:
            self._link.close()

    def flap(self) -> None:
        """The link to the Scheduler breaks while both live."""
        if self.is_alive and self._link is not None and self._link.is_open:
            self.cluster.num_faults["GPU link broken"] += 1
            self._link.close()

    def _lose_link(self) -> None:
        self._link = None
        self._forget_if_drained()
        if self.cluster.settings.ranks_per_group > 1:
            # A peer may never have heard of the plan whose load waits for its share, or of a step.
            self.cluster.after(_DRAIN_S, self._end_if_stuck)

    def _end_if_stuck(self) -> None:
        if self._link is not None or not self.is_alive:
            return
        is_waiting = self.cluster.meetings.is_waiting(self.rank, self.incarnation)
        if self._num_copying or is_waiting:
            self.cluster.kill_rank(self.rank)
        elif self.is_stepping and self.cluster.settings.lanes_per_group > 1:
            # The next step may be one that others have not heard of.
            self.cluster.after(_DRAIN_S, self._end_if_stuck)

    def _forget_if_drained(self) -> None:
        if self._link is not None or not self.is_alive or self.is_stepping or self._num_copying:
            return
        for kept in (self.tokens, self.hashes, self.tables, self.stale, self._shares):
            kept.clear()
        for part in (self.not_finite, self.scores, self.grammars, self.standing):
            part.forget()
        self._restore_experts()
        if not self._is_resting:
            self.cluster.after(self.cluster.world.draw_redial_s(), self._dial)

    def _restore_experts(self) -> None:
        """The next Scheduler knows only where they were at the start."""
        if self.experts is not None:
            self.experts.restore()

    def _arrive(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        # Copies overtake the steps that are queued before them.
        self._start_copies(plan.loads, is_load=True)
        self._start_copies(plan.backups, is_load=False)
        self._copy_experts(plan)
        if not self.is_stepping:
            self._next()

    def _next(self) -> None:
        if self._repeats():
            self.is_stepping = True
            self._wait_for_loads(self.standing.repeat())
            return
        if not self.plans or not self.is_alive:
            self.is_stepping = False
            self._forget_if_drained()
            return
        self.is_stepping = True
        taken = self.standing.take(self.plans.popleft())
        if taken.left_out is not None:
            self._send(taken.left_out)
        self._apply(taken.plan)
        self._wait_for_loads(taken.plan)

    def _repeats(self) -> bool:
        """Whether the plan that stands is carried out once more: what comes may come too late."""
        may_repeat = self.standing.may_repeat and self.is_alive and self._link is not None
        if not may_repeat or not self.plans:
            return may_repeat
        return self.cluster.random.random() < self.cluster.faults.ahead_fraction

    def _copy_experts(self, plan: StepPlan) -> None:
        for copy in [] if self.experts is None else self.experts.begin_copies(plan.expert_copies):
            self._num_copying += 1
            delay_s = self.cluster.clock.draw(self.cluster.faults.copy_s)
            self.cluster.after(delay_s, partial(self._copied_expert, copy))

    def _copied_expert(self, copy: ExpertCopy) -> None:
        if not self.is_alive or self.experts is None:
            return
        self.experts.end_copy(copy)
        self._num_copying -= 1
        self._forget_if_drained()

    def _apply(self, plan: StepPlan) -> None:
        if self.experts is not None and plan.placement is not None:
            self.experts.put(plan.placement)
        for part in (self.scores, self.not_finite, self.grammars):
            part.apply(plan)
        for slot in plan.removed_slots.tolist():
            del self.tokens[slot], self.hashes[slot], self.tables[slot]
        for added in plan.added:
            assert added.slot not in self.tokens, f"slot {added.slot} is taken"
            self.tokens[added.slot] = added.token_ids.tolist()
            salt = self.cluster.cache_salt(added.sampling)
            self.hashes[added.slot] = prefix_hashes(self.tokens[added.slot], salt)
            self.tables[added.slot] = [{} for _ in self.pages]
        change_tables(self.tables, plan)

    def _start_copies(self, copies: PageCopies, *, is_load: bool) -> None:
        started_s = self.cluster.now_s
        transfers = by_transfer(copies)
        self._num_copying += len(transfers)
        for transfer, entries in transfers.items():
            if is_load:
                self.loading.add(transfer)
            last_s = 0.0
            own = self.parts.own_share(entries)
            lag_s = self.cluster.faults.load_lag_s if is_load else 0.0
            for entry in own:
                delay_s = lag_s + self.cluster.clock.draw(self.cluster.faults.copy_s)
                last_s = max(last_s, delay_s)
                copy = self._load_page if is_load else self._back_up_page
                self.cluster.after(delay_s, partial(copy, entry))
            ended = partial(self._copied, transfer, entries, is_load, started_s)
            if is_load and self.parts.is_shared(entries):
                ended = partial(self._share_copied, transfer, ended)
            self.cluster.after(last_s, ended)

    def _peers(self) -> list[SimulatedRank]:
        first = self.rank - self.part
        others = range(first, first + self.cluster.settings.ranks_per_lane)
        ranks = [self.cluster.ranks[rank] for rank in others if rank != self.rank]
        return [
            rank
            for rank in ranks
            if isinstance(rank, SimulatedRank) and rank.incarnation == self.incarnation
        ]

    def _share_copied(self, transfer: int, ended: partial[None]) -> None:
        """The load ends once the shares of all peers have come, too."""
        if not self.is_alive:
            return
        for peer in self._peers():
            peer.take_share(transfer, self.rank)
        self._copied_loads[transfer] = ended
        self._end_if_shared(transfer)

    def take_share(self, transfer: int, rank: int) -> None:
        """A peer has written its share of a load into this rank's pages."""
        self._shares.setdefault(transfer, set()).add(rank)
        self._end_if_shared(transfer)

    def _end_if_shared(self, transfer: int) -> None:
        num_peers = self.cluster.settings.ranks_per_lane - 1
        if transfer in self._copied_loads and len(self._shares.get(transfer, ())) == num_peers:
            del self._shares[transfer]
            self._copied_loads.pop(transfer)()

    def _load_page(self, copy: PageCopy) -> None:
        content = self.cluster.node.arena[copy.host_page][self.parts.part_of(copy.group)]
        if self.is_alive:
            self.pages[copy.group][copy.page] = list(content)
        if self.parts.is_latent(copy.group) and self.cluster.now_s <= self.exit_s:
            for peer in self._peers():
                peer.pages[copy.group][copy.page] = list(content)

    def _back_up_page(self, copy: PageCopy) -> None:
        last_copy_s = self.cluster.faults.last_copy_s
        if self.is_alive or not last_copy_s:
            self._write_host_page(copy)
        else:
            delay_s = self.cluster.clock.draw(last_copy_s)
            self.cluster.after(delay_s, partial(self._write_host_page, copy))

    def _write_host_page(self, copy: PageCopy) -> None:
        if self.cluster.now_s > self.exit_s:
            return
        if self.cluster.node.generations[copy.host_page] != copy.generation:
            raise StrayWrite(f"rank {self.rank} writes host page {copy.host_page} of another")
        content = tuple(self.pages[copy.group][copy.page])
        self.cluster.node.arena[copy.host_page][self.parts.part_of(copy.group)] = content

    def _copied(
        self, transfer: int, entries: list[PageCopy], is_load: bool, started_s: float
    ) -> None:
        if not self.is_alive:
            return
        is_stale = is_load and self.is_stale(entries)
        self.loading.discard(transfer)
        if is_stale:
            self.stale.add(transfer)
        done = TransfersDone(
            rank=self.rank,
            transfer_ids=int32_array((transfer,)),
            stale_transfer_ids=int32_array((transfer,) if is_stale else ()),
            num_bytes=self.parts.loaded_bytes(entries) if is_load else 0,
            seconds=self.cluster.now_s - started_s if is_load else 0.0,
        )
        # Another thread reports copies: steps on top of them may be reported before.
        late_s = self.cluster.clock.draw(self.cluster.faults.report_s)
        self.cluster.after(late_s, lambda: self._report(done))

    def _report(self, done: TransfersDone) -> None:
        if not self.is_alive:
            return
        self._send(done)
        self._num_copying -= 1
        self._forget_if_drained()

    def is_stale(self, entries: list[PageCopy]) -> bool:
        """Did a host page change hands before all of them were read?"""
        return any(
            self.cluster.node.generations[entry.host_page] != entry.generation for entry in entries
        )

    def _wait_for_loads(self, plan: StepPlan) -> None:
        if self.loading.intersection(plan.row_loads.tolist()):
            self.cluster.after(0.001, lambda: self._wait_for_loads(plan))
            return
        if self.is_met(plan):
            meetings = self.cluster.meetings
            meetings.begin(self.rank, self.incarnation, plan, partial(self._run, plan))
        else:
            self._run(plan)

    def is_met(self, plan: StepPlan) -> bool:
        """All ranks of the step group run this step together, those without rows on padding."""
        return bool(plan.group_tokens.any())

    def _run(self, plan: StepPlan) -> None:
        """The ranks that step together have all begun."""
        self._send_rows_to_experts(plan)
        has_tokens = len(plan.row_slots) > 0 or self.is_met(plan)
        duration_s = self.cluster.draw_step_s(plan) if has_tokens else 0.0
        self.cluster.after(duration_s, lambda: self._compute(plan, duration_s))

    def _send_rows_to_experts(self, plan: StepPlan) -> None:
        if self.experts is None or not self.is_alive:
            return
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        hashes = [
            value
            for slot, start, count in rows
            for value in self.hashes[slot][start : start + count]
        ]
        peers = self.cluster.experts_of_group(self.rank)
        self.experts.send_rows(plan.step, hashes, peers, self.cluster.now_s)

    def _compute(self, plan: StepPlan, duration_s: float) -> None:
        if not self.is_alive:
            return
        sampled: list[int] = []
        layout, fraction = self.cluster.settings.layout, self.cluster.faults.not_finite_fraction
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens, plan.row_write_starts)
        columns += (plan.row_output_positions, plan.row_loads)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for slot, start, count, write_start, output_position, load in rows:
            is_void = self.not_finite.strike(plan.step, slot, fraction)
            is_sound = not is_void and load not in self.stale
            if not is_sound:
                self.hashes[slot] = [-1] * len(self.hashes[slot])
            row = ModelledRow(
                hashes=self.hashes[slot],
                tables=self.tables[slot],
                start=start,
                end=start + count,
                write_start=write_start,
            )
            if is_sound:
                row.check(self.pages, layout)
            row.write(self.pages, layout)
            if output_position >= 0:
                last = None if is_void else self.hashes[slot][start + count - 1]
                token = self.grammars.sample(slot, output_position, last)
                del self.tokens[slot][start + count :], self.hashes[slot][start + count :]
                self.tokens[slot].append(token)
                self.hashes[slot].append(hash((self.hashes[slot][-1], token)))
                sampled.append(token)
        result = StepResult(
            rank=self.rank, step=plan.step, token_ids=int32_array(sampled), compute_s=duration_s
        )
        result = self.scores.add_to(result, plan, self.hashes)
        result = self.grammars.add_to(self.not_finite.add_to(result, plan))
        if self.experts is not None:
            demand = self.experts.end_step(plan.step, self.is_met(plan))
            copied = self.experts.take_copied()
            result = replace(result, expert_demand=demand, copied_experts=copied)
        self._send(result)
        self._next()

    def _send(self, message: FromRank) -> None:
        if self._link is not None:
            self._link.send(End.ACCEPTOR, message)
