"""How long an HTTP connection may wait with headers."""

import asyncio

import pytest

from raydix.runtime.server import bounded_http
from tests.runtime.server.served_engine import Server
from tests.runtime.server.test_connections import LONG

HEAD = b"GET /health HTTP/1.1\r\nHost: h\r\n"
WHOLE = HEAD + b"\r\n"
UNREAD = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
"""Answered at once, as it does not say that its body is JSON."""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([b""], None),
        ([b"\r\n"], None),
        ([HEAD], 408),
        ([WHOLE, HEAD], 408),
        ([WHOLE, b"\r\n"], None),
        ([UNREAD, b"{}" + HEAD], 408),
    ],
)
async def test_headers_that_do_not_end_close_the_connection(
    server: Server, sent: list[bytes], status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "HEADER_S", 0.1)
    host, _, port = server.url.rpartition("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    *whole, last = sent
    async with asyncio.timeout(10):
        for part in whole:
            writer.write(part)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(each for each in head.lower().split(b"\r\n") if b"-length:" in each)
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(last)
        answer = await reader.read()

    told = [int(each[:3]) for each in answer.split(b"HTTP/1.1 ")[1:]]
    assert told == ([] if status is None else [status])
    writer.close()


async def test_a_connection_outlasts_the_deadline_of_headers_between_requests_and_in_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "HEADER_S", 0.05)
    async with server.http() as http:
        for _ in range(3):
            answer = await http.post("/v1/completions", json=LONG)
            assert answer.elapsed.total_seconds() > 0.05
            assert answer.status_code == 200
