"""The Redis protocol (RESP2) over one socket, receiving bulk values straight into the caller's memory."""

import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from raydix.errors import ConfigError

_LINE_BUFFER_BYTES = 4096
_SCRATCH_BYTES = 1 << 16
_MAX_REPLY_BYTES = 64 << 20
"""Of a value that is not received into the caller's memory."""
_MAX_IOVECS = 512
_TIMEVAL = struct.Struct("@ll")
_DEFAULT_PORT = 6379


class ProtocolError(OSError):
    """The server said something that is no RESP2; the connection is of no more use."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, what)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server refuses a command, such as `OOM command not allowed when used memory > 'maxmemory'`."""

    message: str


Reply = bytes | int | None | ErrorReply | list["Reply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RespAddress:
    """Where a server listens, and what to say first."""

    endpoint: tuple[str, int] | str
    """Host and port, or the path of a socket."""
    username: str | None = None
    password: str | None = None
    database: int = 0

    @classmethod
    def parse(cls, url: str) -> "RespAddress":
        """Take `redis://...` or `unix:///...` apart. Raises ConfigError."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return cls(endpoint=parts.path)
        database = parts.path.strip("/") or "0"
        try:
            port = parts.port or _DEFAULT_PORT
        except ValueError:
            port = 0
        if parts.scheme != "redis" or not parts.hostname or not port or not database.isdecimal():
            # Without the address itself, which may hold a password.
            raise ConfigError(
                "cache.l3.url is no address of a Redis server; expected "
                "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] or unix:///SOCKET"
            )
        return cls(
            endpoint=(parts.hostname, port),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            database=int(database),
        )


def encode_command(*words: bytes) -> bytes:
    """One command, without the value that may follow it."""
    return b"*%d\r\n%s" % (len(words), b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))


class RespConnection:
    """Owns: one socket. After any exception it must be closed: replies may still be on their way.

    Deadlines are in the time of `clock`; past one, TimeoutError. Nothing is received once a method has returned.
    """

    def __init__(self, address: RespAddress, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Connect. Raises OSError, TimeoutError among them."""
        self._clock = clock
        self._buffer = bytearray(_LINE_BUFFER_BYTES)
        self._start = self._end = 0
        timeout_s = self._remaining_s(deadline_s)
        if isinstance(address.endpoint, str):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.settimeout(timeout_s)
                self._socket.connect(address.endpoint)
            except OSError:
                self._socket.close()
                raise
        else:
            self._socket = socket.create_connection(address.endpoint, timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel minds the deadlines: one call then moves a whole page without the interpreter.
        self._socket.settimeout(None)

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
            for part in window:
                if sent < len(part):
                    break
                sent -= len(part)
                index, offset = index + 1, 0
            offset += sent

    def read_reply(self, deadline_s: float) -> Reply:
        """The next reply, whole."""
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
                return [self.read_reply(deadline_s) for _ in range(_to_int(text))]
        raise ProtocolError(f"reply of unknown kind {kind!r}")

    def read_length(self, kind: bytes, deadline_s: float) -> int | ErrorReply | None:
        """The header of a bulk value (`kind` b"$") or an array (b"*"): its length, None if it is nil, or an error."""
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
        """Receive the body of a bulk value of `length` bytes into nowhere."""
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
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6) or 1))

    def _remaining_s(self, deadline_s: float) -> float:
        remaining_s = deadline_s - self._clock()
        if remaining_s <= 0:
            raise TimeoutError("the deadline has passed")
        return min(remaining_s, 1e6)


def _to_int(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(f"{text[:40]!r} is no number") from None
