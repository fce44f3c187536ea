"""Two nodes of which one reads the other's pages by NIXL: when, and what happens where it fails."""

import asyncio
import importlib.util
import logging
import os
from collections.abc import Sequence
from itertools import product

import pytest

from raydix.ids import BatchId
from raydix.runtime.actors.arena_users import OF_HOST_MEMORY, ArenaUsers
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.pulls import pull_settings, readers
from raydix.runtime.actors.pulls.carriers import LeaseCarrier, NixlFacts, why_not_nixl
from raydix.runtime.actors.pulls.leasing import ReadFailed, RemoteRead
from raydix.runtime.actors.pulls.nixl_process import NixlProcess, NixlUnusable
from raydix.runtime.cache.host.arena_geometry import USERS_BYTES
from raydix.runtime.cache.host.events import PagesSent, PeerAttached, PeerLost, ReaderAttached
from raydix.runtime.config.pull import PullTransport
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.pulls import ArenaAccess
from raydix.runtime.tiers.host_arena import ArenaLocation
from tests.runtime.actors.pulls.nodes import Shell, two_shells
from tests.runtime.actors.pulls.test_transports import FakeReads, needs_nixl

OK = ObjectStatus.OK
NIXL = PullTransport.NIXL
NOWHERE = ArenaLocation(pid=os.getpid(), fd=-1, file=(0, 0), geometry=None)  # type: ignore[arg-type]
BY_TCP = "pages of holder come by TCP from now on, as NIXL has failed: "


def test_nixl_is_used_where_it_is_there_and_nothing_must_be_encrypted() -> None:
    for transport, *facts in product(PullTransport, *[(False, True)] * 3):
        is_installed, has_rdma, is_encrypted = facts
        reason = why_not_nixl(
            transport,
            NixlFacts(is_installed=is_installed, has_rdma=has_rdma, is_encrypted=is_encrypted),
        )

        may = is_installed and not is_encrypted
        expected = {
            PullTransport.TCP: False,
            PullTransport.NIXL: may,
            PullTransport.AUTO: may and has_rdma,
        }
        assert (reason is None) == expected[transport], (transport, facts, reason)


class FakeProcess:
    """A `NixlProcess` whose arena can be read by whoever is in the same process."""

    access = ArenaAccess(metadata=b"fake", address=0)

    def __init__(self, location: ArenaLocation, users: ArenaUsers, num_channels: int = 1) -> None:
        self.is_alive = True

    def close(self) -> None:
        self.is_alive = False


@pytest.fixture
def fake_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that seems to be there, with processes that are none."""
    there = NixlFacts(is_installed=True, has_rdma=False, is_encrypted=False)
    monkeypatch.setattr(pull_settings, "nixl_facts", lambda _: there)
    monkeypatch.setattr(readers, "NixlProcess", FakeProcess)


class Reads(FakeReads):
    """Reads of `FakeReads` of which only the first few do not fail."""

    def __init__(self, holder: Shell, own: Shell, num_good: int) -> None:
        super().__init__(holder.arena, own.arena)
        self.num_good, self.num_done = num_good, 0

    def read(self, reads: Sequence[RemoteRead]) -> None:
        if self.num_done == self.num_good:
            raise ReadFailed("the wire is cut")
        super().read(reads)
        self.num_done += 1


def carry_by(monkeypatch: pytest.MonkeyPatch, reads: Reads) -> None:
    monkeypatch.setattr(
        LeaseCarrier,
        "open",
        lambda location, users, access, namespace, num: LeaseCarrier([reads] * num, namespace),
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.usefixtures("fake_nixl")
async def test_pages_are_read_where_both_ends_can(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_shells(transport=NIXL, num_streams=1) as (holder, own, record):
        reads = Reads(holder, own, num_good=1000)
        carry_by(monkeypatch, reads)
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)

        own.pull(1, range(20))

        assert await own.statuses(1) == [OK] * 20
        assert all(own.holds(page) for page in range(20))
        assert reads.num_done
        reader = (await holder.wait_for(ReaderAttached)).connection
        assert await holder.wait_for(PagesSent) == PagesSent(reader, BatchId(1))


@pytest.mark.usefixtures("fake_nixl")
async def test_a_failing_read_costs_its_link_once_and_tcp_takes_over_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_shells(transport=NIXL, num_streams=1) as (holder, own, record):
        carry_by(monkeypatch, Reads(holder, own, num_good=1))
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)
        own.pull(1, [1])
        assert await own.statuses(1) == [OK]

        own.pull(2, [2])
        await own.wait_for(PeerLost)
        assert not own.answers(2), "nobody is told of pages that have not come"
        await own.wait_for(PeerAttached, 2)
        own.pull(3, [2])

        assert await own.statuses(3) == [OK]
        assert own.holds(1)
        await holder.wait_for(PagesSent, 3)
        assert [each for each in warnings(caplog) if each.startswith(BY_TCP)] == [
            BY_TCP + "the wire is cut"
        ]


@pytest.mark.usefixtures("fake_nixl")
async def test_nixl_that_does_not_come_up_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise NixlUnusable("no memory can be registered")

    monkeypatch.setattr(LeaseCarrier, "open", refuse)
    async with two_shells(transport=NIXL) as (_, own, record):
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)
        own.pull(1, [1])
        assert await own.statuses(1) == [OK]
        assert warnings(caplog) == [BY_TCP + "no memory can be registered"]


@pytest.mark.usefixtures("fake_nixl")
async def test_a_holder_whose_process_has_ended_sends_pages() -> None:
    async with two_shells(transport=NIXL) as (holder, own, record):
        assert holder.pulls._readers._nixl is not None
        holder.pulls._readers._nixl.close()
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)
        own.pull(1, [1])
        assert await own.statuses(1) == [OK]


async def test_where_the_library_is_missing_pages_are_sent_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = NixlFacts(is_installed=False, has_rdma=True, is_encrypted=False)
    monkeypatch.setattr(pull_settings, "nixl_facts", lambda _: lacking)
    async with two_shells(transport=NIXL) as (_, own, record):
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)
        own.pull(1, range(8))
        assert await own.statuses(1) == [OK] * 8
    assert warnings(caplog) == [
        "pages travel by TCP, not by NIXL: the library nixl is not installed (pip install "
        "'raydix[nixl]')"
    ]


def test_a_process_that_cannot_use_nixl_says_why() -> None:
    if importlib.util.find_spec("nixl") is not None:
        pytest.skip("NIXL is installed")
    users = ArenaUsers(memoryview(bytearray(USERS_BYTES)))
    with pytest.raises(NixlUnusable, match="its process has ended with"):
        NixlProcess(NOWHERE, users)
    assert users.names == ()


async def test_a_process_is_noted_before_it_maps_the_arena_and_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = memoryview(bytearray(USERS_BYTES))
    users = ArenaUsers(region)
    noted: list[ProcessId] = []

    def ask(_: NixlProcess, question: ArenaLocation) -> ArenaAccess:
        assert question == NOWHERE
        noted.extend(ArenaUsers(region).processes(OF_HOST_MEMORY))
        return FakeProcess.access

    monkeypatch.setattr(NixlProcess, "_ask", ask)
    process = await asyncio.to_thread(NixlProcess, NOWHERE, users)
    assert [each.is_alive for each in noted] == [True]
    waiting = asyncio.create_task(ArenaUsers(region).wait_former_ended())
    await asyncio.sleep(0.01)
    assert not waiting.done(), "the next HostMemory takes the arena while this one may write it"

    await asyncio.to_thread(process.close)
    async with asyncio.timeout(30):
        await waiting
    assert ArenaUsers(region).names == ()


def test_an_arena_that_can_note_no_more_processes_is_not_read_by_nixl() -> None:
    users = ArenaUsers(memoryview(bytearray(64)))
    with pytest.raises(NixlUnusable, match="as many as it can note"):
        NixlProcess(NOWHERE, users)


@needs_nixl
async def test_nixl_reads_pages_until_its_process_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_shells(transport=NIXL) as (holder, own, record):
        own.pulls.follow([record])
        await own.wait_for(PeerAttached)
        own.pull(1, range(20))
        assert await own.statuses(1) == [OK] * 20
        assert all(own.holds(page) for page in range(20))

        assert holder.pulls._readers._nixl is not None
        holder.pulls._readers._nixl.close()
        own.pull(2, range(20, 40))
        await own.wait_for(PeerLost)
        await own.pull_again(3, range(20, 40))

        assert await own.statuses(3) == [OK] * 20
        assert all(own.holds(page) for page in range(40))
        assert any(each.startswith(BY_TCP) for each in warnings(caplog))
