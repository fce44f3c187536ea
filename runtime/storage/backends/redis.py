"""L3 in a Redis server, through a client of our own that receives straight into the arena."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.backends.resp import (
    ErrorReply,
    ProtocolError,
    Reply,
    RespAddress,
    RespConnection,
    encode_command,
)
from raydix.runtime.storage.batches import compare_length
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_MAX_CHUNK_BYTES = 16 << 20
"""The most bytes per round trip: the server copies a whole reply before it sends the first byte."""
_MAX_CHUNK_COMMANDS = 1024
_SCAN_COUNT = b"1000"


class _Refused(OSError):
    """The server answers, but not to us."""


class RedisBackend:
    """Owns: connections to one server, one per thread that uses it at a time.

    Keys are `raydix:<namespace, 16 hex>:<group>:<key, 64 hex>`. The server bounds and evicts
    (`maxmemory`, `maxmemory-policy`), and engines may share it. A server that cannot be reached
    fails operations, not `open`: it may come back. A broken connection is replaced at the next
    operation.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: int | None = None,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s` is for connecting and what has no deadline. A bad `url` is a ConfigError."""
        self._address = RespAddress.parse(url)
        self._options = (b"NX",) if ttl_s is None else (b"NX", b"EX", b"%d" % ttl_s)
        self._timeout_s = timeout_s
        self._clock = clock

        self._prefix = b""
        self._idle: list[RespConnection] = []
        self._lock = threading.Lock()
        self._counts = BackendCounts(f"Redis at {self._address.place}")

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Try to connect. Raises ConfigError if the server refuses the login or the database."""
        self._prefix = b"raydix:%s:" % namespace.hex.encode()
        try:
            self._put_back(self._take(self._deadline_s()))
        except _Refused as error:
            raise ConfigError(f"cache.l3.url: the Redis server refuses us: {error}") from error
        except OSError as error:
            logger.warning("the Redis server of cache.l3.url does not answer: %s", error)

    def _key(self, name: ObjectName) -> bytes:
        return b"%s%d:%s" % (self._prefix, name.group, name.key.hex().encode())

    def _deadline_s(self) -> float:
        return self._clock() + self._timeout_s

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Ask in one round trip per 1024 names; a server that does not answer is no MISSING."""
        return [
            self._is_there(reply)
            for reply in self._ask([(b"EXISTS", self._key(name)) for name in names])
        ]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Receive values straight into the arena."""
        return self._in_chunks(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Send pages straight from the arena; the first writer wins."""
        return self._in_chunks(refs, deadline_s, self._put)

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Unlink the values."""
        return [
            self._is_there(reply)
            for reply in self._ask([(b"UNLINK", self._key(name)) for name in names])
        ]

    def clear(self) -> ObjectStatus:
        """Scan the whole database for the namespace's keys: takes long where others keep many."""
        cursor = b"0"
        while True:
            [page] = self._ask(
                [(b"SCAN", cursor, b"MATCH", self._prefix + b"*", b"COUNT", _SCAN_COUNT)]
            )
            if not isinstance(page, list) or len(page) != 2 or not isinstance(page[1], list):
                return ObjectStatus.IO_ERROR

            keys = [key for key in page[1] if isinstance(key, bytes)]
            if any(
                isinstance(reply, ObjectStatus)
                for reply in self._ask([(b"UNLINK", key) for key in keys])
            ):
                return ObjectStatus.IO_ERROR
            if page[0] == b"0" or not isinstance(page[0], bytes):
                return ObjectStatus.OK
            cursor = page[0]

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes; the server knows no times. An empty value counts as none."""
        sizes = self._ask([(b"STRLEN", self._key(name)) for name in names])
        return [ObjectInfo(size, None) if size and type(size) is int else None for size in sizes]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """The server chooses what goes, and knows no hints."""

    def stats(self) -> dict[str, int]:
        """Counters; asks the server nothing."""
        with self._lock:
            num_idle = len(self._idle)
        return {"idle_connections": num_idle} | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def tidy(self) -> bool:
        """The server makes room by itself."""
        return False

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, deadline_s: float) -> RespConnection:
        """An idle connection that still stands, or a new one. Raises OSError."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(min(deadline_s, self._deadline_s()))
            if connection.is_fresh:
                return connection
            connection.close()

    def _connect(self, deadline_s: float) -> RespConnection:
        connection = RespConnection(self._address, deadline_s, self._clock)
        self._counts.add("connections_opened")

        address = self._address
        greetings = []
        if address.password is not None:
            login = [address.username, address.password] if address.username else [address.password]
            greetings.append((b"AUTH", *(word.encode() for word in login)))
        if address.database:
            greetings.append((b"SELECT", b"%d" % address.database))
        greetings.append((b"PING",))

        try:
            for words in greetings:
                reply = connection.call(deadline_s, *words)
                # A server that still reads its file from disk is ours all the same.
                if isinstance(reply, ErrorReply) and not reply.message.startswith("LOADING"):
                    raise _Refused(reply.message)
        except BaseException:
            connection.close()
            raise
        return connection

    def _put_back(self, connection: RespConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _converse(
        self, deadline_s: float, talk: Callable[[RespConnection], None]
    ) -> ObjectStatus | None:
        """Have `talk` use a connection. Returns the status of what it did not get to, if any."""
        # A connection goes back only if every reply was read.
        try:
            connection = self._take(deadline_s)
            try:
                talk(connection)
            except BaseException:
                connection.close()
                raise
            self._put_back(connection)
        except TimeoutError as error:
            return self._counts.timeout(error)
        except OSError as error:
            return self._counts.io_error(error)
        return None

    def _in_chunks(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        move: Callable[[RespConnection, Sequence[ObjectRef], float, list[ObjectStatus]], None],
    ) -> list[ObjectStatus]:
        """Have `move` add a status per object; the first broken connection ends the batch."""
        statuses: list[ObjectStatus] = []

        def talk(connection: RespConnection) -> None:
            for chunk in _chunks(refs):
                move(connection, chunk, deadline_s, statuses)

        failure = self._converse(deadline_s, talk)
        if failure is not None:
            statuses += [failure] * (len(refs) - len(statuses))
        return statuses

    def _get(
        self,
        connection: RespConnection,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        statuses: list[ObjectStatus],
    ) -> None:
        connection.send(
            [encode_command(b"MGET", *(self._key(ref.name) for ref in refs))], deadline_s
        )
        count = connection.read_length(b"*", deadline_s)
        if isinstance(count, ErrorReply):
            statuses += [self._refusal(count)] * len(refs)
            return
        if count != len(refs):
            raise ProtocolError(f"{count} values; expected {len(refs)}")

        num_read = 0
        for ref in refs:
            length = connection.read_length(b"$", deadline_s)
            if length is None:
                statuses.append(ObjectStatus.MISSING)
            elif isinstance(length, ErrorReply):
                statuses.append(self._refusal(length))
            elif length == len(ref.page):
                connection.read_into(ref.page, deadline_s)
                num_read += 1
                statuses.append(ObjectStatus.OK)
            else:
                connection.skip(length, deadline_s)
                statuses.append(compare_length(length, len(ref.page)))
        self._counts.add("objects_read", num_read)

    def _put(
        self,
        connection: RespConnection,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        statuses: list[ObjectStatus],
    ) -> None:
        parts: list[bytes | memoryview] = []
        options = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in self._options)
        for ref in refs:
            key = self._key(ref.name)
            head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (
                3 + len(self._options),
                len(key),
                key,
                len(ref.page),
            )
            parts += (head, ref.page, b"\r\n" + options)
        connection.send(parts, deadline_s)

        num_written = 0
        for _ in refs:
            reply = connection.read_reply(deadline_s)
            if reply == b"OK":
                num_written += 1
                statuses.append(ObjectStatus.OK)
            elif reply is None:
                statuses.append(ObjectStatus.OK)  # it exists; NX has kept its bytes
            elif isinstance(reply, ErrorReply):
                statuses.append(self._refusal(reply))
            else:
                raise ProtocolError(f"SET is answered with {reply!r}")
        self._counts.add("objects_written", num_written)

    def _ask(self, commands: Sequence[tuple[bytes, ...]]) -> list[Reply | ObjectStatus]:
        """Replies to short commands, pipelined; a status in place of each that did not come."""
        replies: list[Any] = []
        deadline_s = self._deadline_s()

        def talk(connection: RespConnection) -> None:
            for start in range(0, len(commands), _MAX_CHUNK_COMMANDS):
                chunk = commands[start : start + _MAX_CHUNK_COMMANDS]
                connection.send([b"".join(encode_command(*words) for words in chunk)], deadline_s)
                replies.extend(connection.read_reply(deadline_s) for _ in chunk)

        failure = self._converse(deadline_s, talk)
        if failure is not None:
            replies += [failure] * (len(commands) - len(replies))
        return [
            self._refusal(reply) if isinstance(reply, ErrorReply) else reply for reply in replies
        ]

    def _is_there(self, reply: object) -> ObjectStatus:
        """The status of one key, OK or MISSING, by the answer to EXISTS or UNLINK."""
        # First of all, for a status is an int, too.
        if isinstance(reply, ObjectStatus):
            return reply
        if reply == 0:
            return ObjectStatus.MISSING
        if reply == 1:
            return ObjectStatus.OK
        return self._counts.io_error(f"a count of one key is {reply!r}")

    def _refusal(self, reply: ErrorReply) -> ObjectStatus:
        if reply.message.startswith("OOM"):
            self._counts.add("store_full")
            return ObjectStatus.FULL
        return self._counts.io_error(reply.message)


def _chunks(refs: Sequence[ObjectRef]) -> Iterator[Sequence[ObjectRef]]:
    """Cut a batch so that no part but a single object exceeds what one round trip may carry."""
    start, size_bytes = 0, 0
    for index, ref in enumerate(refs):
        size_bytes += len(ref.page)
        if size_bytes > _MAX_CHUNK_BYTES and index > start:
            yield refs[start:index]
            start, size_bytes = index, len(ref.page)
    if refs:
        yield refs[start:]
