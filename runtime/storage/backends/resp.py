"""The Redis protocol (RESP2) over one socket; bulk values go straight into the caller's memory."""

import errno
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from raydix.errors import ConfigError

_LINE_BUFFER_BYTES = 4096
_SCRATCH_BYTES = 1 << 16
_MAX_REPLY_BYTES = 64 << 20
"""The largest value that is not received into the caller's memory."""
_MAX_REPLY_ITEMS = 1 << 20
"""The most items of all arrays of one reply; a page of SCAN has about a thousand."""
_MAX_REPLY_DEPTH = 8
_MAX_IOVECS = 512
_TIMEVAL = struct.Struct("@ll")
_DEFAULT_PORT = 6379
_MAX_SOCKET_PATH_BYTES = 107
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


class ProtocolError(OSError):
    """The server said something that is not RESP2; the connection is of no more use."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, what)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server refuses a command: `OOM command not allowed when used memory > 'maxmemory'`."""

    message: str


Reply = bytes | int | None | ErrorReply | list["Reply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RespAddress:
    """Where a server listens, and what to say first."""

    endpoint: tuple[str, int] | str
    """The server's host and port, or the path of its socket."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0

    @property
    def place(self) -> str:
        """The place where the server listens, for people; without the password."""
        return (
            self.endpoint if isinstance(self.endpoint, str) else ":".join(map(str, self.endpoint))
        )

    @classmethod
    def parse(cls, url: str) -> "RespAddress":
        """Take `redis://...` or `unix:///...` apart.

        Raises ConfigError for anything else, and for what is left.
        """
        try:
            return cls._parse(url)
        except ValueError as error:
            raise ConfigError(
                f"cache.l3.url is no address of a Redis server: {error}. Expected "
                "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] or unix:///SOCKET"
            ) from None

    @classmethod
    def _parse(cls, url: str) -> "RespAddress":
        """Raises ValueError, which shows no part of the address."""
        # Each part may be a password out of place.
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("it is no URL, or its port is no number up to 65535") from None
        if parts.scheme == "unix":
            return cls._of_socket(parts)
        return cls._of_host(parts, _DEFAULT_PORT if port is None else port)

    @classmethod
    def _of_socket(cls, parts: SplitResult) -> "RespAddress":
        path = unquote(parts.path)
        if parts.netloc or parts.query or parts.fragment or len(path) < 2 or "\0" in path:
            raise ValueError("a socket has a path and nothing else")
        if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"the path of a socket has {_MAX_SOCKET_PATH_BYTES} bytes at most")
        return cls(endpoint=path)

    @classmethod
    def _of_host(cls, parts: SplitResult, port: int) -> "RespAddress":
        if parts.scheme != "redis" or not parts.hostname:
            raise ValueError("scheme or host is missing or unknown")
        if parts.query or parts.fragment:
            raise ValueError(
                "it has options, such as ?db=; the database follows the host and a slash"
            )
        if not re.fullmatch("/?|/[0-9]{1,9}", parts.path, re.ASCII):
            raise ValueError("the database is no number")
        if parts.username and not parts.password:
            raise ValueError("it has a user without a password")
        _require_host_name(parts.hostname)
        if not port:
            raise ValueError("the port is 0")

        return cls(
            endpoint=(parts.hostname, port),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            database=int(parts.path.strip("/") or "0"),
        )


def _require_host_name(name: str) -> None:
    """Raises ValueError for what no resolver takes; the codec's own error would show the name."""
    try:
        name.encode("idna")
    except UnicodeError:
        raise ValueError("the host is no name") from None
    if not name.isprintable() or " " in name:
        raise ValueError("the host is no name")


def encode_command(*words: bytes) -> bytes:
    """One command, without the value that may follow it."""
    return b"*%d\r\n%s" % (
        len(words),
        b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words),
    )


class RespConnection:
    """Owns: one socket. After any exception it must be closed: replies may still be on their way.

    Deadlines are in the time of `clock`; past one, TimeoutError. Nothing is received once a method
    has returned.
    """

    def __init__(
        self, address: RespAddress, deadline_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Connect. Raises OSError, TimeoutError among them."""
        self._clock = clock
        self._buffer = bytearray(_LINE_BUFFER_BYTES)
        self._start = self._end = 0
        self._socket = self._connect(address, deadline_s)
        # The kernel minds the deadlines: one call then moves a whole page without the interpreter.
        self._socket.settimeout(None)

    def _connect(self, address: RespAddress, deadline_s: float) -> socket.socket:
        """Try the server's addresses in turn, all before the deadline; the resolver has its own."""
        if isinstance(address.endpoint, str):
            return _dial(socket.AF_UNIX, address.endpoint, self._remaining_s(deadline_s))

        failure = OSError(errno.EHOSTUNREACH, "the server's name has no address")
        found = socket.getaddrinfo(*address.endpoint, type=socket.SOCK_STREAM)
        for index, (family, _, _, _, where) in enumerate(found):
            try:
                return _dial(family, where, self._remaining_s(deadline_s) / (len(found) - index))
            except OSError as error:
                failure = error
        raise failure

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def is_fresh(self) -> bool:
        """Nothing waits to be read, and the other end has not closed."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._start == self._end
        except OSError:
            return False
        return False

    def call(self, deadline_s: float, *words: bytes) -> Reply:
        """Send one command and wait for its reply."""
        self.send([encode_command(*words)], deadline_s)
        return self.read_reply(deadline_s)

    def send(self, parts: Sequence[bytes | memoryview], deadline_s: float) -> None:
        """Send all bytes of `parts`."""
        index, offset = 0, 0

        while index < len(parts):
            window = [memoryview(parts[index])[offset:], *parts[index + 1 : index + _MAX_IOVECS]]
            self._set_timeout(socket.SO_SNDTIMEO, deadline_s)
            try:
                sent = self._socket.sendmsg(window)
            except BlockingIOError:
                raise TimeoutError("the server takes no more bytes") from None

            # The kernel may have taken some of the parts, and a piece of the next one.
            for part in window:
                if sent < len(part):
                    break
                sent -= len(part)
                index, offset = index + 1, 0
            offset += sent

    def read_reply(self, deadline_s: float) -> Reply:
        """The next reply, whole."""
        return self._read_reply(deadline_s, _MAX_REPLY_DEPTH, [_MAX_REPLY_ITEMS])

    def _read_reply(self, deadline_s: float, depth: int, items_left: list[int]) -> Reply:
        """A reply in which arrays are `depth` deep at most.

        `items_left`: one number, which all of them draw on.
        """
        kind, text = self._read_line(deadline_s)

        match kind:
            case b"+":
                return text
            case b"-":
                return ErrorReply(text.decode(errors="replace"))
            case b":":
                return _to_int(text)
            case b"$":
                return self._read_value(_to_int(text), deadline_s)
            case b"*":
                count = _to_int(text)
                if count < 0:
                    return None
                items_left[0] -= count
                if not depth or items_left[0] < 0:
                    raise ProtocolError(
                        f"arrays deeper than {_MAX_REPLY_DEPTH}, or of more than {_MAX_REPLY_ITEMS}"
                    )
                return [self._read_reply(deadline_s, depth - 1, items_left) for _ in range(count)]
        raise ProtocolError(f"reply of unknown kind {kind!r}")

    def read_length(self, kind: bytes, deadline_s: float) -> int | ErrorReply | None:
        """The length of a bulk value (`kind` b"$") or an array (b"*"); None if it is nil."""
        found, text = self._read_line(deadline_s)
        if found == b"-":
            return ErrorReply(text.decode(errors="replace"))
        if found != kind:
            raise ProtocolError(f"reply of kind {found!r}; expected {kind!r}")
        length = _to_int(text)
        return None if length < 0 else length

    def read_into(self, page: memoryview, deadline_s: float) -> None:
        """Receive the body of a bulk value of len(page) bytes."""
        done = min(self._end - self._start, len(page))
        page[:done] = memoryview(self._buffer)[self._start : self._start + done]
        self._start += done
        while done < len(page):
            done += self._receive(page[done:], socket.MSG_WAITALL, deadline_s)
        self._read_line_end(deadline_s)

    def skip(self, length: int, deadline_s: float) -> None:
        """Receive the body of a bulk value of `length` bytes and drop it."""
        scratch = memoryview(bytearray(min(length, _SCRATCH_BYTES)))
        buffered = min(self._end - self._start, length)
        self._start += buffered
        left = length - buffered
        while left:
            left -= self._receive(scratch[:left], 0, deadline_s)
        self._read_line_end(deadline_s)

    def _read_value(self, length: int, deadline_s: float) -> bytes | None:
        if length < 0:
            return None
        if length > _MAX_REPLY_BYTES:
            raise ProtocolError(f"value of {length} bytes; expected at most {_MAX_REPLY_BYTES}")
        value = bytearray(length)
        self.read_into(memoryview(value), deadline_s)
        return bytes(value)

    def _read_line(self, deadline_s: float) -> tuple[bytes, bytes]:
        """The kind of a reply and the rest of its line."""
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            self._fill(deadline_s)
        line = bytes(self._buffer[self._start : end])
        self._start = end + 2
        return line[:1], line[1:]

    def _read_line_end(self, deadline_s: float) -> None:
        if self._read_line(deadline_s) != (b"", b""):
            raise ProtocolError("a value is longer than its header says")

    def _fill(self, deadline_s: float) -> None:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._end -= self._start
            self._start = 0
        if self._end == len(self._buffer):
            raise ProtocolError(f"a line has more than {_LINE_BUFFER_BYTES} bytes")
        self._end += self._receive(memoryview(self._buffer)[self._end :], 0, deadline_s)

    def _receive(self, target: memoryview, flags: int, deadline_s: float) -> int:
        self._set_timeout(socket.SO_RCVTIMEO, deadline_s)
        try:
            received = self._socket.recv_into(target, len(target), flags)
        except BlockingIOError:
            raise TimeoutError("the server does not answer") from None
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        return received

    def _set_timeout(self, option: int, deadline_s: float) -> None:
        seconds = self._remaining_s(deadline_s)
        self._socket.setsockopt(
            socket.SOL_SOCKET, option, _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6) or 1)
        )

    def _remaining_s(self, deadline_s: float) -> float:
        remaining_s = deadline_s - self._clock()
        if remaining_s <= 0:
            raise TimeoutError("the deadline has passed")
        return min(remaining_s, 1e6)


def _dial(family: int, where: str | tuple[Any, ...], timeout_s: float) -> socket.socket:
    """A connected socket. Raises OSError, and leaves none."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(where)
        if family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _to_int(text: bytes) -> int:
    if not _INTEGER.fullmatch(text):
        raise ProtocolError(f"{text[:40]!r} is no number")
    return int(text)
