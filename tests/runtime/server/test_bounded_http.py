"""How long an HTTP connection may wait with headers."""

import asyncio
import json

import pytest

from raydix.runtime.server import bounded_http
from tests.runtime.server.served_engine import Server
from tests.runtime.server.test_connections import LONG

HEAD = b"GET /health HTTP/1.1\r\nHost: h\r\n"
WHOLE = HEAD + b"\r\n"
UNREAD = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
"""Answered at once, as it does not say that its body is JSON."""
ASKED = json.dumps({**LONG, "max_tokens": 1}).encode()


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


async def answer_to(server: Server, *parts: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    host, _, port = server.url.rpartition("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(20):
        for part in parts:
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("num_parts", [1, 2])
async def test_the_bound_of_a_head_does_not_depend_on_how_it_comes(
    server: Server, num_parts: int
) -> None:
    def head(num_bytes: int) -> list[bytes]:
        line = b"GET /health HTTP/1.1\r\nConnection: close\r\nA: "
        whole = line + b"a" * (num_bytes - len(line) - 4) + b"\r\n\r\n"
        size = -(-len(whole) // num_parts)
        return [whole[i : i + size] for i in range(0, len(whole), size)]

    assert (await answer_to(server, *head(60 << 10))).startswith(b"HTTP/1.1 200 ")
    assert (await answer_to(server, *head(70 << 10))).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("num_parts", [1, 2])
async def test_the_bound_of_trailers_does_not_depend_on_how_they_come(
    server: Server, num_parts: int
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(ASKED), ASKED)

    def parts(num_bytes: int) -> list[bytes]:
        trailers = b"A: " + b"a" * (num_bytes - 7) + b"\r\n\r\n"
        size = -(-len(trailers) // num_parts)
        pieces = [trailers[i : i + size] for i in range(0, len(trailers), size)]
        return [head + chunks + pieces[0], *pieces[1:]]

    assert (await answer_to(server, *parts(60 << 10))).startswith(b"HTTP/1.1 200 ")
    assert await answer_to(server, *parts(70 << 10)) == b""


@pytest.mark.parametrize("is_stream", [False, True])
async def test_http_1_0_gets_answers_without_chunks(server: Server, is_stream: bool) -> None:
    body = json.dumps({**LONG, "max_tokens": 3, "stream": is_stream}).encode()
    lines = "POST /v1/completions HTTP/1.0", "Content-Type: application/json"
    asking = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
    head, _, answer = (await answer_to(server, asking + body)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    if is_stream:
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("kind", "status"), [(b"application/json", b"408"), (b"text/plain", b"400")]
)
async def test_a_body_that_does_not_end_closes_the_connection(
    server: Server, kind: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "BODY_S", 0.1)
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\nContent-Type: "
    answer = await answer_to(server, head + kind + b"\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1 ") == 1
