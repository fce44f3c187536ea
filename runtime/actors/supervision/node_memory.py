"""A node's L2 as one actor: HostMemory, its storage actor, and how long both stay."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydix.errors import AccountingError, ConfigError, EngineDead
from raydix.ids import SchedulerName
from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.host_memory import HostMemoryActor, HostMemorySetup
from raydix.runtime.actors.l2_claims import hold_claim
from raydix.runtime.actors.l2_record import L2Name, L2Record, l2_path
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.lock_file import LockHeld
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.actors.process import ProcessId, end_with, exit_process
from raydix.runtime.actors.pulls.pull_settings import PeerRecord
from raydix.runtime.actors.pulls.pulls import PeerFinder
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.control_calls import Call, ControlCalls
from raydix.runtime.actors.supervision.l2_plan import Guest, L2Plan, L2Stay
from raydix.runtime.actors.supervision.node_share import L2Claim
from raydix.runtime.actors.supervision.node_storage import NodeStorage
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, Spawner, actor_name
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32


class NodeMemoryActor:
    """Owns: an L2, from its making to its end: whether it is open, for whom, and for how long.

    Engines of one node and namespace join it. It dies with none of them. Once the last one has
    ended it stays for as long as that one asked for.
    """

    def __init__(
        self,
        *,
        claim: L2Claim,
        node: str | None,
        maker_pid: int,
        spawner: Spawner,
        supervision: Supervision,
        log_path: str,
        finder: PeerFinder | None = None,
        exporter: MetricsExporter | None = None,
        on_fatal: Callable[[], None] = exit_process,
    ) -> None:
        """`claim`: what it is called, and what it takes of the node's memory.

        `node`: where engines find it; None: nowhere, as it is its maker's alone. `maker_pid`: of
        who makes it, with whom it ends, unless it can be found and was joined. `log_path`: see
        `Spawner`. `finder`: knows other nodes' HostMemories. `on_fatal` is also called once it has
        ended by itself.
        """
        self._claim = claim
        name = self._name = claim.name
        self._node = node
        # Before its maker lets go of it.
        self._claim_file = hold_claim(claim)
        self._supervision = supervision
        self._on_end = on_fatal
        self.host = HostMemoryActor(
            name=name, incarnation=1, on_fatal=on_fatal, exporter=exporter, finder=finder
        )

        self._folder = PrivateFolder()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._storage = NodeStorage(
            name,
            self.host,
            address=f"unix:{self._folder.path}/host.sock",
            secret=self._secret,
            spawner=spawner,
            supervision=supervision,
            log_path=log_path,
        )
        self._own_name: L2Name | None = None
        self._control: Listener | None = None

        self._arena: ArenaLocation | None = None
        self._planned: PlannedArena | None = None
        """What an arena was made for before anybody has joined."""
        self._users: ArenaUsers | None = None
        self._plan: L2Plan | None = None
        """The plan of who opened it; None before that."""
        self._stay = L2Stay()
        self._joining = asyncio.Lock()
        self._watched: set[SchedulerName] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        if maker_pid != os.getpid():
            end_with(maker_pid, unless=lambda: node is not None and self._plan is not None)

    def __repr__(self) -> str:
        return f"NodeMemory({self._name})"

    async def make_arena(self, planned: PlannedArena, folder: str | None) -> None:
        """Make the arena while its maker's ranks load. Raises ConfigError without the memory."""
        self._planned = planned
        size_bytes = self._claim.size_bytes
        self._arena = await self.host.create_arena(planned.layout, size_bytes, folder)

    async def join(self, plan: L2Plan, guest: Guest, held: ArenaLocation | None) -> ArenaLocation:
        """Let an engine use this L2; whoever comes first opens it, and may come again.

        `held`: where a rank of this engine maps the arena of the HostMemory before this one. Raises
        ConfigError if others use an L2 that is not as planned, or are as many as it can note, or if
        its memory is not there; EngineDead if it is ending, gives way to one as planned, or another
        one has its name.
        """
        async with self._joining:
            if self._is_ending:
                raise EngineDead(f"{self._name} is ending")
            if self._plan is None:
                await self._open(plan, held)
            elif differences := plan.differences(self._plan):
                self._refuse(differences)
            assert self._arena is not None, "it is open"
            assert self._users is not None, "it is open"

            # First, as the list may be full: only who is noted there is watched, and ever leaves.
            self._users.add(guest.name, guest.process)
            self._stay.come(guest)
            self.host.follow(guest.name, guest.scheduler_address, guest.secret)
            self._watch(guest.name)
            self._set_timer()
            logger.info("engine %s uses %s", guest.engine, self._name)
            return self._arena

    def leave(self, name: SchedulerName) -> None:
        """An engine is about to end its processes, with which it has ended."""
        self.host.unfollow(name)

    def note_process(self, name: SchedulerName, pid: int) -> None:
        """A process of an engine that has joined is about to map the arena."""
        assert self._users is not None, "nobody has joined before it is open"
        self._users.add(name, ProcessId.of(pid))

    def _refuse(self, differences: Sequence[str]) -> None:
        if guests := self._stay.guests:
            users = ", ".join(guest.engine for guest in guests)
            raise ConfigError(
                f"the L2 of this model on this node, {self._name}, is used by {users}, and is "
                f"another one: {'; '.join(differences)}. Configure the same, or stop the others."
            )
        self._add_task(self._end("it gives way to one of other settings"))
        raise EngineDead(f"{self._name} gives way")

    async def _open(self, plan: L2Plan, held: ArenaLocation | None) -> None:
        """Take the name and the arena, and begin to decide within it."""
        if self._node is not None:
            await self._take_name(l2_path(self._node, plan.namespace, plan.layout))
        planned = PlannedArena(layout=plan.layout, size_bytes=plan.size_bytes)
        if held is not None:
            try:
                self._arena = await self.host.adopt_arena(held)
            except OSError as error:
                raise EngineDead(f"the rank that had the arena has ended: {error}") from error
        elif self._arena is None:
            await self.make_arena(planned, plan.folder)
        elif self._planned != planned:
            raise AccountingError(
                f"the arena was planned for {self._planned}; the ranks have {planned}"
            )

        assert self.host.arena is not None, "it was made or adopted"
        self._users = ArenaUsers(self.host.arena.users)
        await self._users.wait_former_ended()
        former = self._users.engines
        await self.host.start(
            HostMemorySetup(
                settings=replace(plan.settings, has_storage=plan.l3 is not None),
                storage_address=self._storage.address,
                storage_secret=self._secret,
                former_users=tuple(former),
                pull=plan.pull,
            ),
            self._users,
        )
        self._plan = plan
        assert self._arena is not None, "it was made or adopted"
        self._storage.start(plan.l3, plan.namespace, self._arena, self._users)
        for name in former:
            self._watch(name)

    async def _take_name(self, path: Path) -> None:
        try:
            self._own_name = L2Name(path)
        except LockHeld:
            raise EngineDead(f"{self._name} is late: another one has its name") from None
        record = L2Record(
            name=self._name,
            actor=actor_name(self._name, ActorKind.HOST_MEMORY),
            pid=os.getpid(),
            control_address=f"unix:{self._folder.path}/control.sock",
            secret=self._secret,
        )
        own = Hello(role=Role.HOST_MEMORY, name=self._name, incarnation=1, pid=os.getpid())
        calls = ControlCalls({"describe": Call(self.describe), "end": Call(self.end_unused)})
        self._control = await listen(record.control_address, own, self._secret, calls.serve)
        self._own_name.publish(record)

    # Its end

    def _watch(self, name: SchedulerName) -> None:
        if name not in self._watched:
            self._watched.add(name)
            self._add_task(self._await_end_of(name))

    async def _await_end_of(self, name: SchedulerName) -> None:
        """Let go of an engine once its Supervisor and all that map the arena have ended."""
        assert self._users is not None, "it has users"
        while alive := [each for each in self._users.processes(name) if each.is_alive]:
            # Its Supervisor first, without which no further ones come.
            await alive[0].wait_ended()
        self._watched.discard(name)
        self._users.remove(name)
        self.host.forget(name)
        holds_pages = bool(self.host.stats()["pages_ready"])
        self._stay.go(name, time.monotonic(), holds_pages=holds_pages)
        logger.info("an engine that used %s has ended: %s", self._name, name)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._node is not None and (ends_at_s := self._stay.ends_at_s) is not None:
            delay_s = max(ends_at_s - time.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._end_of_stay)

    def _end_of_stay(self) -> None:
        self._add_task(self._end("nobody has used it for as long as it was to be kept"))

    async def end_unused(self) -> bool:
        """Begin to end, if no engine uses it. Returns whether none does."""
        if self._stay.guests:
            return False
        self._add_task(self._end("it was asked to"))
        return True

    async def _end(self, why: str) -> None:
        """Be found no more, let writes to L3 end, and give the memory back."""
        if self._is_ending or self._stay.guests:
            return
        self._is_ending = True
        if self._own_name is not None:
            self._own_name.release()
        logger.info("%s ends: %s", self._name, why)
        await self.host.drain(self._supervision.drain_timeout_s)
        await self._storage.switch.end()
        self._folder.remove()
        self._claim_file.remove()
        self._on_end()

    async def stop(self) -> None:
        """End what this process has of the L2, for a process that lives on."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        await self._storage.switch.end()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.host.stop()
        self._folder.remove()
        self._claim_file.remove()

    # What engines ask its storage actor

    async def wait_storage(self) -> str | None:
        """Wait until L3 is used, as `NodeStorage.wait` says."""
        return await self._storage.wait()

    async def attach_storage(self, section: L3Section) -> str | None:
        """Use another backend; see `StorageSwitch.attach`."""
        return await self._storage.switch.attach(section)

    async def detach_storage(self) -> str | None:
        """Go on without L3; see `StorageSwitch.detach`."""
        return await self._storage.switch.detach()

    async def storage_facts(self) -> dict[str, Any]:
        """Tell of the storage actor, as `NodeStorage.facts` says."""
        return await self._storage.facts()

    # What engines ask HostMemory

    def stats(self) -> dict[str, Any]:
        """HostMemory's figures, and how many engines use it."""
        return {**self.host.stats(), "num_engines": len(self._stay.guests)}

    def describe(self) -> dict[str, Any]:
        """What people want to know of it, as plain values."""
        assert self._plan is not None, "it is found once it is open"
        ends_at_s = self._stay.ends_at_s
        return {
            "name": self._name,
            "pid": os.getpid(),
            "node": self._node,
            "model_path": self._plan.model_path,
            "namespace": self._plan.namespace.hex,
            "size_bytes": self._claim.size_bytes,
            "ready_bytes": self.host.stats()["ready_bytes"],
            "engines": [guest.engine for guest in self._stay.guests],
            "ends_in_s": None if ends_at_s is None else max(ends_at_s - time.monotonic(), 0.0),
        }

    def peer_record(self) -> PeerRecord | None:
        """Tell where other nodes may pull pages, as `HostMemoryActor.peer_record` says."""
        return self.host.peer_record()

    async def flush(self) -> int:
        """Drop all of L2 that is not in use, as `HostMemoryActor.flush` says."""
        return await self.host.flush()

    async def flush_storage(self) -> str:
        """Remove the objects in L3, as `HostMemoryActor.flush_storage` says."""
        return await self.host.flush_storage()

    async def drain(self, timeout_s: float) -> bool:
        """Wait for writes to L3, as `HostMemoryActor.drain` says."""
        return await self.host.drain(timeout_s)

    def check(self) -> None:
        """Prove the invariants, as `HostMemoryActor.check` says."""
        self.host.check()

    def _add_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
