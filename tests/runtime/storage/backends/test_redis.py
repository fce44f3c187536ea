"""The Redis backend: servers that die, stall, are full, want a password or break the protocol."""

import contextlib
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends import redis as redis_module
from raydix.runtime.storage.backends.redis import RedisBackend
from tests.runtime.storage.backends.redis_server import RedisServer, RedisStore
from tests.runtime.storage.stores import NAMESPACE, OBJECT_BYTES, content, make_key, make_object

OK, MISSING, FULL = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.FULL
IO_ERROR, TIMED_OUT = ObjectStatus.IO_ERROR, ObjectStatus.TIMED_OUT
LATE = 1e18


def opened(url: str, **options: object) -> RedisBackend:
    backend = RedisBackend(url, **options)  # type: ignore[arg-type]
    backend.open(memoryview(b""), NAMESPACE)
    return backend


def targets(*names: int, num_bytes: int = OBJECT_BYTES) -> list[ObjectRef]:
    return [
        ObjectRef(ObjectName(make_key(name), 0), memoryview(bytearray(num_bytes)), 0)
        for name in names
    ]


def soon() -> float:
    return time.monotonic() + 0.2


def test_killed_server_fails_operations_and_a_new_one_is_found_without_reopening(
    redis_server: RedisServer,
) -> None:
    backend = opened(redis_server.url)
    objects = [make_object(name) for name in range(4)]
    names = [ref.name for ref in objects]
    assert backend.batch_put_from(objects, LATE) == [OK] * 4

    redis_server.kill()
    assert backend.batch_get_into(targets(0, 1, 2, 3), LATE) == [IO_ERROR] * 4
    assert backend.batch_put_from(objects, LATE) == [IO_ERROR] * 4
    assert backend.batch_exists(names) == [IO_ERROR] * 4
    assert backend.delete(names) == [IO_ERROR] * 4
    assert backend.query(names) == [None] * 4
    assert backend.clear() is IO_ERROR

    redis_server.start()
    assert backend.batch_get_into(targets(0, 1), LATE) == [MISSING] * 2
    assert backend.batch_put_from(objects, LATE) == [OK] * 4
    assert backend.batch_get_into(targets(0, 1, 2, 3), LATE) == [OK] * 4
    assert backend.stats()["io_errors"] == 6
    backend.close()


def test_server_killed_in_the_middle_of_batches_leaves_an_answer_per_object(
    redis_server: RedisServer,
) -> None:
    backend = opened(redis_server.url)
    objects = [make_object(name, bytes(4 << 20)) for name in range(24)]
    started = threading.Event()
    statuses: list[ObjectStatus] = []

    def write() -> None:
        for _ in range(200):
            statuses.extend(backend.batch_put_from(objects, LATE))
            started.set()
            if IO_ERROR in statuses:
                return

    writer = threading.Thread(target=write)
    writer.start()
    assert started.wait(60)
    redis_server.kill()
    writer.join(60)
    assert not writer.is_alive()
    assert len(statuses) % 24 == 0
    assert set(statuses) == {OK, IO_ERROR}
    backend.close()


def test_server_that_stalls_costs_no_more_than_the_deadline(redis_server: RedisServer) -> None:
    backend = opened(redis_server.url, timeout_s=0.2)
    objects = [make_object(name, bytes(4 << 20)) for name in range(8)]
    redis_server.pause()
    started_s = time.monotonic()
    assert backend.batch_get_into(targets(0, 1), soon()) == [TIMED_OUT] * 2
    assert backend.batch_put_from(objects, soon()) == [TIMED_OUT] * 8
    assert backend.batch_exists([objects[0].name]) == [TIMED_OUT]
    assert time.monotonic() - started_s < 5.0
    assert backend.stats()["timeouts"] == 3
    assert backend.stats()["idle_connections"] == 0
    backend.close()


def test_server_that_is_not_there_at_first_is_used_once_it_is(redis_server: RedisServer) -> None:
    redis_server.kill()
    backend = opened(redis_server.url)
    assert backend.batch_put_from([make_object(1)], LATE) == [IO_ERROR]
    redis_server.start()
    assert backend.batch_put_from([make_object(1)], LATE) == [OK]
    backend.close()


def test_full_server_refuses_or_evicts_as_it_is_set(redis_server: RedisServer) -> None:
    backend = RedisStore(redis_server.url).make(max_bytes=2 << 20)
    backend.open(memoryview(b""), NAMESPACE)
    objects = [make_object(name, bytes(256 << 10)) for name in range(32)]
    statuses = backend.batch_put_from(objects, LATE)
    assert set(statuses) == {OK, FULL}
    assert backend.stats()["store_full"] == statuses.count(FULL)
    redis_server.call(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
    assert backend.batch_put_from(objects, LATE) == [OK] * 32
    found = backend.batch_exists([ref.name for ref in objects])
    assert found[-1] is OK
    assert found.count(MISSING) > 16
    backend.close()


def test_objects_expire_where_a_time_to_live_is_set(redis_server: RedisServer) -> None:
    backend = opened(redis_server.url, ttl_s=100)
    backend.batch_put_from([make_object(1)], LATE)
    [key] = redis_server.call(b"KEYS", b"*")  # type: ignore[misc]
    assert redis_server.call(b"TTL", key) in range(1, 101)
    backend.close()


def test_clear_spares_the_keys_of_others(redis_server: RedisServer) -> None:
    backend = opened(redis_server.url)
    assert (
        backend.batch_put_from([make_object(name, b"x") for name in range(2500)], LATE)
        == [OK] * 2500
    )
    redis_server.call(b"SET", b"raydix:else", b"kept")
    assert backend.clear() is OK
    assert redis_server.call(b"KEYS", b"*") == [b"raydix:else"]
    backend.close()


def test_batch_larger_than_a_round_trip_comes_back(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "_MAX_CHUNK_BYTES", 5 * OBJECT_BYTES // 2)
    backend = opened(redis_server.url)
    backend.batch_put_from([make_object(name) for name in range(9) if name != 4], LATE)
    read = targets(*range(9))
    assert backend.batch_get_into(read, LATE) == [OK] * 4 + [MISSING] + [OK] * 4
    assert [ref.page[64:] for ref in read if ref is not read[4]] == [
        content(name) for name in range(9) if name != 4
    ]
    assert backend.batch_get_into([], LATE) == []
    backend.close()


def test_wrong_password_and_unknown_database_are_config_errors(redis_server: RedisServer) -> None:
    with pytest.raises(ConfigError, match="DB index"):
        opened(redis_server.url.removesuffix("1") + "99")
    redis_server.call(b"CONFIG", b"SET", b"requirepass", b"s3:cret/")
    with pytest.raises(ConfigError, match="NOAUTH"):
        opened(redis_server.url)
    with pytest.raises(ConfigError, match="WRONGPASS"):
        opened(redis_server.url.replace("//", "//:wrong@"))
    for login in (":s3%3Acret%2F@", "default:s3%3Acret%2F@"):
        backend = opened(redis_server.url.replace("//", f"//{login}"))
        assert backend.batch_put_from([make_object(1)], LATE) == [OK]
        backend.close()


def test_server_on_a_socket_in_the_file_system(redis_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "s"
    process = subprocess.Popen(
        [redis_server.program, "--port", "0", "--unixsocket", path, "--save", ""],
        stdout=subprocess.DEVNULL,
    )

    backend = opened(f"unix://{path}")
    give_up_s = time.monotonic() + 20
    while backend.batch_put_from([make_object(1)], LATE) != [OK]:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)  # a process that starts sends no word of it

    assert backend.batch_get_into(targets(1), LATE) == [OK]
    backend.close()
    process.kill()
    process.wait()


class ScriptedServer:
    """Owns: a socket, and a thread that answers each command with the next part of a script."""

    def __init__(self, script: list[bytes]) -> None:
        self.script = script
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        self.last_word = threading.Event()
        """The last part of the script waits for it."""
        self.said_all = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        connection, _ = self.listener.accept()
        connection.recv(1 << 16)
        connection.sendall(b"+PONG\r\n")
        for index, part in enumerate(self.script):
            if index == len(self.script) - 1:
                self.last_word.wait(60)
            else:
                connection.recv(1 << 16)
            with contextlib.suppress(OSError):
                connection.sendall(part)
        self.said_all.set()
        connection.close()


def test_value_that_comes_after_the_deadline_does_not_reach_the_page() -> None:
    value = bytes(make_object(1).page)
    half = len(value) // 2
    server = ScriptedServer(
        [b"*1\r\n$%d\r\n%s" % (len(value), value[:half]), value[half:] + b"\r\n"]
    )
    backend = opened(server.url)
    [ref] = targets(1)

    assert backend.batch_get_into([ref], soon()) == [TIMED_OUT]
    ref.page[:] = b"S" * len(ref.page)
    server.last_word.set()
    assert server.said_all.wait(60)
    assert ref.page == b"S" * len(ref.page)
    assert backend.stats()["idle_connections"] == 0
    backend.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"*2\r\n$-1\r\n$-1\r\n",
        b"*1\r\n$what\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n$%d\r\n%s" % (OBJECT_BYTES, bytes(OBJECT_BYTES) + b"more\r\n"),
        b"x" * 10_000,
    ],
)
def test_server_that_breaks_the_protocol_is_an_error(reply: bytes) -> None:
    server = ScriptedServer([reply, b""])
    backend = opened(server.url)
    assert backend.batch_get_into(targets(1), LATE) == [IO_ERROR]
    assert backend.stats()["idle_connections"] == 0
    server.last_word.set()
    backend.close()


@pytest.mark.parametrize(
    ("reply", "status"), [(b"-OOM no\r\n", FULL), (b"-READONLY no\r\n", IO_ERROR)]
)
def test_refused_command_keeps_the_connection(reply: bytes, status: ObjectStatus) -> None:
    server = ScriptedServer([reply, b""])
    backend = opened(server.url)
    assert backend.batch_put_from([make_object(1)], LATE) == [status]
    assert backend.stats()["idle_connections"] == 1
    server.last_word.set()
    backend.close()


@pytest.mark.parametrize("reply", [b"$-1\r\n", b"+OK\r\n", b":7\r\n", b"*0\r\n"])
def test_answer_that_is_no_count_is_not_a_miss(reply: bytes) -> None:
    server = ScriptedServer([reply, b""])
    backend = opened(server.url)
    assert backend.batch_exists([targets(1)[0].name]) == [IO_ERROR]
    server.last_word.set()
    backend.close()
