"""Ranks whose pages are real: pools on a device, an arena, a transfer engine, steps on a stream.

Scheduler, HostMemory and links run on the cluster's virtual clock as ever, and it says when a copy
may begin, when a step is enqueued, and when they are reported, which waits for the device. Until
then the device goes on by itself; on a GPU random delays on its streams bring copies and steps out
of step. A page holds, in every element of a token's place, the hash of all tokens up to there.
"""

import random
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies, StepPlan, StepResult, TransfersDone
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import Direction, Transfer, TransferDone, TransferEngine
from tests.simulation.cluster import Cluster
from tests.simulation.modelled_tokens import VOCABULARY, WrongHit, next_token, prefix_hashes
from tests.simulation.prompt_scores import PromptScores

_PATIENCE_S = 30.0
_CPU_THREADS = 16
"""The number of copies that may be held up at once."""
_MAX_SPIN_CYCLES = 3_000_000
"""About 1.5 ms."""


class _Tokens:
    """A request's tokens as its rank knows them. Owns: `hashes`, the modelled keys and values."""

    def __init__(self, token_ids: list[int], cache_salt: str | None) -> None:
        self.hashes = prefix_hashes(token_ids, cache_salt)

    def sample(self, end: int) -> int:
        """The token at `end`; what was there, and after it, was another life's."""
        token = next_token(self.hashes[end - 1])
        del self.hashes[end:]
        self.hashes.append(hash((self.hashes[-1], token)))
        return token


@dataclass(frozen=True, slots=True)
class _Row:
    """What one row of a step found. `num_wrong`: elements that differ, on the device."""

    slot: int
    load: int
    num_wrong: torch.Tensor
    token: int | None


@dataclass(frozen=True, slots=True)
class _Step:
    plan: StepPlan
    rows: tuple[_Row, ...]
    scores: StepResult
    """A result with nothing but what it scored."""


class DeviceWorld:
    """Makes the ranks of one cluster. Owns: its arena, and what runs on the device for it."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = torch.device(device)
        self.random = random.Random(seed)
        self._arena: HostArena | None = None
        self._ranks: list[DeviceRank] = []

    def make_rank(self, cluster: Cluster, rank: int, incarnation: int) -> "DeviceRank":
        """Make a rank. The cluster's generations are those of the arena from now on."""
        if self._arena is None:
            size_bytes = cluster.node.geometry.num_slabs * cluster.node.geometry.slab_bytes
            self._arena = HostArena.create(cluster.settings.layout, size_bytes, num_threads=1)
            assert self._arena.geometry == cluster.node.geometry
            self._arena.generations[:] = cluster.node.generations
            cluster.node.generations = self._arena.generations
        own = HostArena.attach(self._arena.location)
        self._ranks.append(DeviceRank(self, cluster, own, rank=rank, incarnation=incarnation))
        return self._ranks[-1]

    def spin(self) -> None:
        """Hold the current stream up for a random time; often not at all."""
        if self.device.type == "cuda" and self.random.random() < 0.5:
            torch.cuda._sleep(self.random.randrange(_MAX_SPIN_CYCLES))

    def close(self) -> None:
        """Wait for all that is still under way, and let go of it."""
        for rank in self._ranks:
            rank.close()
        if self._arena is not None:
            self._arena.close()


class DeviceRank:
    """Owns: the pool, slots and copies of one rank. Stands in for `SimulatedRank`."""

    def __init__(
        self, world: DeviceWorld, cluster: Cluster, arena: HostArena, *, rank: int, incarnation: int
    ) -> None:
        self.rank = rank
        self.incarnation = incarnation
        self.pid = cluster.processes.start()
        self.is_alive = True
        self.exit_s = float("inf")
        self._world = world
        self._cluster = cluster
        self._arena = arena
        self._slots: dict[int, _Tokens] = {}
        self._tables: dict[int, dict[int, int]] = {}
        self._scores = PromptScores()
        self._plans: deque[StepPlan] = deque()
        """Their steps are not enqueued yet."""
        self._steps: deque[_Step] = deque()
        self._is_late = world.random.random() < 0.5
        """A busy device: a step runs just before it is reported, not when its plan arrives."""
        self._gates: dict[Direction, dict[int, threading.Event]] = {
            direction: {} for direction in Direction
        }
        self._changed = threading.Condition()
        self._done: dict[int, TransferDone] = {}
        self._errors: list[BaseException] = []
        shard = KvShard(layout=cluster.settings.layout)
        [pool] = make_pools(shard, cluster.settings.num_pages, world.device)
        self._pool_PLH2SD = pool.view(torch.int32)
        self._stream = torch.cuda.Stream() if world.device.type == "cuda" else None
        self._transfers = self._make_transfers(pool)
        cluster.scheduler.connect(self._use, lambda: self.is_alive)

    def _make_transfers(self, pool: torch.Tensor) -> TransferEngine:
        shard = KvShard(layout=self._cluster.settings.layout)
        arguments = {"on_done": self._note, "on_error": self._errors.append, "delay": self._hold}
        if self._stream is None:
            seed = self._world.random.randrange(1 << 30)
            return CpuTransfers(
                shard, (pool,), self._arena, seed=seed, num_threads=_CPU_THREADS, **arguments
            )
        torch.cuda.synchronize()
        transfers = CudaTransfers(shard, (pool,), self._arena, **arguments)
        transfers.wait_registered()
        return transfers

    def kill(self, linger_s: float) -> None:
        """A process cannot be killed in part."""
        raise NotImplementedError("ranks on a device live as long as their cluster")

    def flap(self) -> None:
        """What is on its way to a device cannot be lost in part."""
        raise NotImplementedError("ranks on a device stay connected")

    def _use(self, link: Link) -> None:
        self._link = link
        link.listen(End.DIALLER, self._arrive, lambda: None)
        link.carry(End.ACCEPTOR, lambda: self._cluster.scheduler.accept_rank(link, self))

    def close(self) -> None:
        """Wait for what is under way and end the threads."""
        for gates in self._gates.values():
            for gate in gates.values():
                gate.set()
        self._transfers.close()
        self._arena.close()
        assert not self._errors, self._errors

    def _arrive(self, plan: StepPlan) -> None:
        # Copies overtake the steps that are queued before them.
        self._start(plan.loads, Direction.LOAD)
        self._start(plan.backups, Direction.BACKUP)
        self._plans.append(plan)
        while not self._is_late and self._plans and self._may_launch(self._plans[0]):
            self._launch()
        if len(self._plans) + len(self._steps) == 1:
            self._complete_later(plan)

    def _may_launch(self, plan: StepPlan) -> bool:
        """Have the loads that its rows wait for been let go?"""
        return all(
            self._gates[Direction.LOAD][load].is_set()
            for load in plan.row_loads.tolist()
            if load >= 0
        )

    def _launch(self) -> None:
        plan = self._plans.popleft()
        self._apply(plan)
        with torch.cuda.stream(self._stream):
            self._steps.append(self._enqueue(plan))

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.removed_slots.tolist():
            del self._slots[slot], self._tables[slot]
        self._scores.apply(plan)
        for added in plan.added:
            assert added.slot not in self._slots, f"slot {added.slot} is taken"
            salt = self._cluster.cache_salt(added.sampling)
            self._slots[added.slot] = _Tokens(added.token_ids.tolist(), salt)
            self._tables[added.slot] = {}
        for changes in plan.tables:
            ends = np.cumsum(changes.counts)
            for slot, first, page_ids in zip(
                changes.slots.tolist(),
                changes.starts.tolist(),
                np.split(changes.page_ids, ends[:-1]),
                strict=True,
            ):
                self._tables[slot].update(enumerate(page_ids.tolist(), first))

    def _enqueue(self, plan: StepPlan) -> _Step:
        """Read each row's context and write its own, layer by layer, behind their loads."""
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens, plan.row_write_starts)
        columns += (plan.row_output_positions, plan.row_loads)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        loads = {load for *_, load in rows if load >= 0}
        self._world.spin()
        num_wrong = [torch.zeros((), dtype=torch.int64, device=self._world.device) for _ in rows]
        for layer in range(self._pool_PLH2SD.shape[1]):
            for load in loads:
                self._transfers.wait_layer(load, layer)
            for (slot, start, count, write_start, _, _), wrong in zip(rows, num_wrong, strict=True):
                first_written = max(start, min(write_start, start + count))
                wrong += self._num_wrong(slot, layer, first_written)
                self._write(slot, layer, first_written, start + count)
        found = []
        for (slot, start, count, _, output_position, load), wrong in zip(
            rows, num_wrong, strict=True
        ):
            token = self._slots[slot].sample(start + count) if output_position >= 0 else None
            found.append(_Row(slot, load, wrong, token))
        hashes = {slot: tokens.hashes for slot, tokens in self._slots.items()}
        scores = self._scores.add_to(StepResult(rank=self.rank, step=plan.step), plan, hashes)
        return _Step(plan, tuple(found), scores)

    def _num_wrong(self, slot: int, layer: int, end: int) -> torch.Tensor:
        pages_T, offsets_T, hashes_T = self._places(slot, 0, end)
        found_THXD = self._pool_PLH2SD[pages_T, layer, :, :, offsets_T]
        return (found_THXD != hashes_T[:, None, None, None]).sum()

    def _write(self, slot: int, layer: int, start: int, end: int) -> None:
        pages_T, offsets_T, hashes_T = self._places(slot, start, end)
        self._pool_PLH2SD[pages_T, layer, :, :, offsets_T] = hashes_T[:, None, None, None]

    def _places(
        self, slot: int, start: int, end: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Page, place and modelled content of positions that lie in the block table's pages."""
        size, table = self._cluster.settings.page_size, self._tables[slot]
        hashes = self._slots[slot].hashes
        columns = [
            (table[position // size], position % size, _as_int32(hashes[position]))
            for position in range(start, end)
        ]
        assert all(page for page, _, _ in columns), (
            f"slot {slot} keeps its tokens in the padding page"
        )
        on_host = torch.tensor(columns, dtype=torch.int64).reshape(-1, 3)
        pages_T, offsets_T, hashes_T = on_host.to(self._world.device, non_blocking=True).unbind(1)
        return pages_T, offsets_T, hashes_T.to(torch.int32)

    def _complete_later(self, plan: StepPlan) -> None:
        duration_s = (
            self._cluster.clock.draw(self._cluster.faults.step_s) if len(plan.row_slots) else 0.0
        )
        self._cluster.after(duration_s, lambda: self._complete(duration_s))

    def _complete(self, duration_s: float) -> None:
        if not self._steps:
            if not self._may_launch(self._plans[0]):
                self._cluster.after(0.001, lambda: self._complete(duration_s))
                return
            self._launch()
        step = self._steps.popleft()
        with torch.cuda.stream(self._stream):
            # Waits for the step, and so for the loads that its rows waited for.
            wrong = [int(row.num_wrong) for row in step.rows]
        token_ids = []
        for row, num_wrong in zip(step.rows, wrong, strict=True):
            is_stale = row.load >= 0 and self._wait_done(row.load).is_stale
            if num_wrong and not is_stale:
                raise WrongHit(
                    f"rank {self.rank}, step {step.plan.step}, slot {row.slot}: {num_wrong} "
                    f"elements are wrong"
                )
            if row.token is not None:
                # What is computed on top of a stale load must never count.
                token_ids.append((row.token + is_stale) % VOCABULARY)
        self._send(replace(step.scores, token_ids=int32_array(token_ids), compute_s=duration_s))
        if self._steps or self._plans:
            self._complete_later(self._steps[0].plan if self._steps else self._plans[0])

    def _start(self, copies: PageCopies, direction: Direction) -> None:
        transfer_ids = list(dict.fromkeys(copies.transfer_ids.tolist()))
        for transfer_id in transfer_ids:
            self._gates[direction][transfer_id] = threading.Event()
        with torch.cuda.stream(self._stream):
            if direction is Direction.LOAD:
                self._transfers.start(copies, PageCopies())
            else:
                self._transfers.start(PageCopies(), copies)
        for transfer_id in transfer_ids:
            delay_s = self._cluster.clock.draw(self._cluster.faults.copy_s)
            begins_s = delay_s * self._world.random.choice([0.0, 0.5, 1.0])
            self._cluster.after(begins_s, partial(self._let_go, transfer_id, direction))
            self._cluster.after(
                delay_s, partial(self._acknowledge, transfer_id, direction, delay_s)
            )

    def _hold(self, transfer: Transfer) -> None:
        """Wait, in a thread of the engine, until the copy may begin."""
        assert self._gates[transfer.direction][transfer.transfer_id].wait(_PATIENCE_S), (
            "a copy is never let go"
        )
        self._world.spin()

    def _let_go(self, transfer_id: int, direction: Direction) -> None:
        """The copy may begin, and on a stream those before it: they are carried out in order."""
        for other, gate in self._gates[direction].items():
            if other == transfer_id or (self._stream is not None and other < transfer_id):
                gate.set()

    def _acknowledge(self, transfer_id: int, direction: Direction, seconds: float) -> None:
        self._let_go(transfer_id, direction)
        done = self._wait_done(transfer_id)
        self._send(
            TransfersDone(
                rank=self.rank,
                transfer_ids=int32_array((transfer_id,)),
                stale_transfer_ids=int32_array((transfer_id,) if done.is_stale else ()),
                num_bytes=done.num_bytes,
                seconds=seconds if done.num_bytes else 0.0,
            )
        )

    def _note(self, done: TransferDone) -> None:
        with self._changed:
            self._done[done.transfer_id] = done
            self._changed.notify_all()

    def _wait_done(self, transfer_id: int) -> TransferDone:
        with self._changed:
            assert self._changed.wait_for(lambda: transfer_id in self._done, _PATIENCE_S), (
                "a copy does not end"
            )
            return self._done[transfer_id]

    def _send(self, message: StepResult | TransfersDone) -> None:
        self._link.send(End.ACCEPTOR, message)


def _as_int32(value: int) -> int:
    """The low 32 bits."""
    return (value & 0xFFFFFFFF) - (1 << 32) * (value >> 31 & 1)
