"""The Redis protocol: addresses that are refused, replies without bounds, connections that fail."""

import contextlib
import errno
import socket
import threading
import time

import pytest

from raydix.errors import ConfigError
from raydix.runtime.storage.backends.resp import ProtocolError, RespAddress, RespConnection

PASSWORD = "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6379",
        "http://host",
        "redis://",
        "redis://[::1",
        "redis://host:0",
        "redis://host:99999",
        f"redis://user:{PASSWORD}/word@host",
        f"redis://:{PASSWORD}@host:port",
        f"redis://:{PASSWORD}@\u2100.example",
        "redis://host/x",
        "redis://host/-1",
        "redis://host/\u0663",
        "redis://host/" + "9" * 5000,
        "redis://host/1/2",
        "redis://host?db=3",
        "redis://host/1?db=3",
        "redis://host/1#3",
        "redis://user@host",
        "redis://user:@host",
        "redis://a..b",
        "redis://" + "a" * 64,
        "redis://two words",
        "unix://",
        "unix:///",
        "unix://host/socket",
        "unix:///socket?db=1",
        "unix:///so%00cket",
        "unix:///" + "a" * 107,
    ],
)
def test_address_that_cannot_be_or_says_more_than_is_used_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match=r"cache\.l3\.url") as caught:
        RespAddress.parse(url)
    assert PASSWORD not in str(caught.value)


def test_addresses_are_taken_apart() -> None:
    assert RespAddress.parse("redis://host") == RespAddress(endpoint=("host", 6379))
    assert RespAddress.parse("redis://u:p%40@[::1]:7/3") == RespAddress(
        endpoint=("::1", 7), username="u", password="p@", database=3
    )
    assert RespAddress.parse("unix:///a%20b") == RespAddress(endpoint="/a b")


class Server:
    """Owns: a listening socket whose one client is sent `reply`."""

    def __init__(self, reply: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.reply = reply
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        # The client may not stay to the end.
        with self.listener, self.listener.accept()[0] as client, contextlib.suppress(OSError):
            client.sendall(self.reply)
            client.recv(1)

    def connect(self) -> RespConnection:
        return RespConnection(
            RespAddress(endpoint=self.listener.getsockname()), time.monotonic() + 30
        )


@pytest.mark.parametrize(
    "reply",
    [
        b"*1\r\n" * 5000 + b":1\r\n",
        b"*1000000000\r\n",
        b"*2\r\n*900000\r\n" + b":1\r\n" * 900_000 + b"*900000\r\n",
        b"*1_0\r\n",
        b":1_0\r\n",
        b": 1\r\n",
        b":" + b"9" * 4000 + b"\r\n",
        b"$1000000000\r\n",
    ],
    ids=["deep", "long", "long in all", "length", "integer", "space", "digits", "value"],
)
def test_reply_without_bounds_is_a_protocol_error(reply: bytes) -> None:
    connection = Server(reply).connect()
    with pytest.raises(ProtocolError):
        connection.read_reply(time.monotonic() + 30)
    connection.close()


def test_nested_and_nil_arrays_are_read() -> None:
    connection = Server(b"*3\r\n*1\r\n:7\r\n*-1\r\n$2\r\nok\r\n").connect()
    assert connection.read_reply(time.monotonic() + 30) == [[7], None, b"ok"]
    connection.close()


def test_all_addresses_of_a_host_are_tried_before_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, waits, tried = [0.0], [], []

    def find(*_: object, **__: object) -> list[object]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", number))
            for number in (1, 2, 3)
        ]

    def wait(self: socket.socket, where: object) -> None:
        tried.append(self)
        waits.append(self.gettimeout())
        now_s[0] += self.gettimeout() or 0.0
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(socket.socket, "connect", wait)
    with pytest.raises(TimeoutError):
        RespConnection(RespAddress(endpoint=("host", 1)), 6.0, lambda: now_s[0])
    assert waits == [2.0, 2.0, 2.0]
    assert [each.fileno() for each in tried] == [-1] * 3


def test_connection_that_cannot_be_set_up_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def refuse(self: socket.socket, *_: object) -> None:
        refused.append(self)
        raise OSError(errno.EINVAL, "Invalid argument")

    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    with pytest.raises(OSError, match="Invalid argument"):
        RespConnection(RespAddress(endpoint=listener.getsockname()), time.monotonic() + 30)
    assert [each.fileno() for each in refused] == [-1]
    listener.close()
