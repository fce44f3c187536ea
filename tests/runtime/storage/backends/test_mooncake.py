"""Mooncake alone: what its service does when parts of it die, and what the adapter makes of it."""

import socket
import sys
from collections.abc import Iterator

import pytest

from raydix.errors import ConfigError
from raydix.ids import HostPageId
from raydix.runtime.config.l3 import MooncakeL3Section
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backends import mooncake
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from tests.free_ports import free_port
from tests.runtime.storage.backends.mooncake_service import MooncakeService, wait_until
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, Bench, content

OK, MISSING, IO_ERROR = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.IO_ERROR


@pytest.fixture
def service() -> Iterator[MooncakeService]:
    service = MooncakeService()
    yield service
    service.kill()


@pytest.fixture
def bench(service: MooncakeService) -> Iterator[Bench]:
    bench = Bench(MooncakeBackend(MooncakeL3Section(backend="mooncake", master=service.address)))
    yield bench
    bench.close()


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    backend = MooncakeBackend(MooncakeL3Section(backend="mooncake", master="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"raydix\[mooncake\]"):
        backend.open(memoryview(bytearray(64)), NAMESPACE)


class FakeClient:
    """A client that remembers what it was set up and called with."""

    setup_code = 0
    register_code = 0

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def setup(self, *arguments: object) -> int:
        self.calls.append(arguments)
        return self.setup_code

    def register_buffer(self, address: int, size_bytes: int) -> int:
        self.calls.append((address, size_bytes))
        return self.register_code

    def unregister_buffer(self, address: int) -> int:
        self.calls.append((address,))
        return 0

    def close(self) -> None:
        self.calls.append(())


@pytest.fixture
def master_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_arena_is_registered_whole_and_the_options_are_passed(
    monkeypatch: pytest.MonkeyPatch, master_port: int
) -> None:
    """Over TCP the library also takes memory that is not registered; over RDMA it cannot."""
    client = FakeClient()
    monkeypatch.setattr(mooncake, "_store_class", lambda: lambda: client)
    options = MooncakeL3Section(
        backend="mooncake",
        master=f"127.0.0.1:{master_port}",
        protocol="rdma",
        devices="mlx5_0",
        segment_bytes=1 << 30,
    )

    backend = MooncakeBackend(options)
    arena = memoryview(bytearray(4096))
    backend.open(arena, NAMESPACE)
    assert client.calls[0] == (
        "127.0.0.1",
        "P2PHANDSHAKE",
        1 << 30,
        16 << 20,
        "rdma",
        "mlx5_0",
        options.master,
    )

    address, size_bytes = client.calls[1]
    assert size_bytes == 4096
    backend.close()
    assert client.calls[2:] == [(address,), ()]


def test_arena_that_cannot_be_registered_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch, master_port: int
) -> None:
    client = FakeClient()
    client.register_code = -1
    monkeypatch.setattr(mooncake, "_store_class", lambda: lambda: client)
    backend = MooncakeBackend(
        MooncakeL3Section(backend="mooncake", master=f"127.0.0.1:{master_port}")
    )
    with pytest.raises(ConfigError, match="locked memory"):
        backend.open(memoryview(bytearray(4096)), NAMESPACE)


def test_client_that_cannot_be_set_up_is_closed_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, master_port: int
) -> None:
    client = FakeClient()
    client.setup_code = -1
    monkeypatch.setattr(mooncake, "_store_class", lambda: lambda: client)
    now_s = [0.0]
    section = MooncakeL3Section(backend="mooncake", master=f"127.0.0.1:{master_port}")
    backend = MooncakeBackend(section, clock=lambda: now_s[0])
    backend.open(memoryview(bytearray(4096)), NAMESPACE)
    assert client.calls[1:] == [()]

    client.setup_code, client.register_code = 0, -1
    now_s[0] = 6.0
    for _ in range(3):
        assert backend.clear() is IO_ERROR, (
            "the arena cannot be registered now: no ConfigError after open"
        )
    assert len(client.calls) == 5, "it looks again only after some time"

    client.register_code = 0
    now_s[0] = 12.0
    backend.query([])
    assert backend.stats()["is_connected"] == 1
    backend.close()


def test_master_that_does_not_answer_is_told_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mooncake, "_store_class", lambda: FakeClient)
    bench = Bench(MooncakeBackend(MooncakeL3Section(backend="mooncake", master="127.0.0.1:1")))
    with pytest.raises(ConfigError, match=r"master 127.0.0.1:1: .*Connection refused.*--lazy"):
        bench.worker.require_answer(timeout_s=30)
    bench.close()


@pytest.mark.parametrize("master", ["localhost:99999", "a..b:50051", "[::1]:1"])
def test_master_whose_address_cannot_be_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.setattr(mooncake, "_store_class", lambda: FakeClient)
    backend = MooncakeBackend(MooncakeL3Section(backend="mooncake", master=master))
    backend.open(memoryview(bytearray(4096)), NAMESPACE)
    assert backend.stats()["is_connected"] == 0
    backend.close()


def test_absent_master_fails_operations_at_once_and_is_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeClient()
    monkeypatch.setattr(mooncake, "_store_class", lambda: lambda: client)
    now_s = [100.0]
    port = free_port()
    backend = MooncakeBackend(
        MooncakeL3Section(backend="mooncake", master=f"127.0.0.1:{port}"), clock=lambda: now_s[0]
    )
    bench = Bench(backend)

    assert bench.exists([1, 2]) == [IO_ERROR] * 2
    assert bench.clear() == [IO_ERROR]
    assert bench.worker.stats()["is_connected"] == 0
    assert client.calls == []

    with socket.create_server(("127.0.0.1", port)):
        assert bench.clear() == [IO_ERROR], "it looks again only after some time"
        now_s[0] += 6
        backend.query([])
    assert bench.worker.stats()["is_connected"] == 1
    bench.close()


def test_copies_of_one_object_in_a_batch_are_all_filled(bench: Bench) -> None:
    bench.write([1, 2])
    assert bench.read([1, 2, 1, 1]) == [OK] * 4
    for place, name in enumerate((1, 2, 1, 1)):
        assert bytes(bench.arena.payload(HostPageId(32 + place), 0)) == content(
            name, LAYOUT.payload_bytes(0)
        )


@pytest.mark.slow
def test_objects_of_a_dead_lender_are_lost_and_the_next_one_is_used(
    bench: Bench, service: MooncakeService
) -> None:
    bench.write([1, 2])
    service.kill_lender()
    assert set(bench.read([1, 2])) <= {IO_ERROR, MISSING}
    wait_until(lambda: bench.read([1, 2]) == [MISSING] * 2)
    service.start_lender()
    wait_until(lambda: bench.write([1, 2]) == [OK] * 2)
    assert bench.read([1, 2]) == [OK] * 2


@pytest.mark.slow
def test_restarted_master_is_found_again(bench: Bench, service: MooncakeService) -> None:
    bench.write([1])
    service.kill_master()
    assert bench.read([1]) == [IO_ERROR]
    service.start_master()
    wait_until(lambda: bench.write([2]) == [OK], timeout_s=60)
    assert bench.read([1, 2]) == [MISSING, OK]


@pytest.mark.slow
def test_silent_master_delays_the_answer_but_no_page_is_touched_after_it(
    bench: Bench, service: MooncakeService
) -> None:
    bench.write([1])
    service.pause_master()
    bench.order(bench.read_order([1], deadline_s=0.1))
    assert bench.answers.empty()
    service.resume_master()
    [status] = bench.wait()
    assert status in (OK, ObjectStatus.TIMED_OUT)
