"""Reads streams of an HTTP server in a process of its own: `python -m benchmarks.http.reader PORT`.

Takes a line of JSON per round, the bodies to send, and prints one, what came of each. It is no part
of what is measured: it waits for all sockets at once, counts events and parses none but the last.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

EVENT = b"data: {"
"""How the events of a stream begin, but for the last, which tells its end."""
_READ_BYTES = 1 << 16
_TAIL_BYTES = 4096
"""More than the last event has."""


@dataclass(kw_only=True)
class Stream:
    """One answer; times are `time.monotonic()`."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    """When each event came."""
    usage: dict[str, Any] = field(default_factory=dict)


class _Reading:
    """Owns: the end of what came of one stream."""

    def __init__(self, port: int, body: bytes) -> None:
        self.stream = Stream(sent_s=time.monotonic())
        self._tail = b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    def read(self) -> bool:
        """Take what has come; whether more may follow. Raises RuntimeError for a refusal."""
        part = self.socket.recv(_READ_BYTES)
        if not self._tail and not part.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"no stream: {part.decode(errors='replace')}")
        if part:
            now_s = time.monotonic()
            self.stream.arrivals_s += [now_s] * part.count(EVENT)
            self._tail = (self._tail + part)[-_TAIL_BYTES:]
            return True

        last = self._tail.rpartition(EVENT)[2].partition(b"\n")[0]
        self.stream.usage = json.loads(b"{" + last)["usage"]
        return False


def read_streams(port: int, bodies: list[dict[str, Any]]) -> list[Stream]:
    """Ask for all at once, over a connection each, and read all to their ends."""
    contents = [json.dumps(body).encode() for body in bodies]
    readings = []
    with selectors.DefaultSelector() as selector:
        for content in contents:
            reading = _Reading(port, content)
            selector.register(reading.socket, selectors.EVENT_READ, reading)
            readings.append(reading)

        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fd)
                    key.data.socket.close()
    return [reading.stream for reading in readings]


def main(port: int) -> None:
    """Serve rounds until standard input ends."""
    for line in sys.stdin:
        streams = read_streams(port, json.loads(line))
        print(json.dumps([asdict(stream) for stream in streams]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
