"""`raydix cache ...` against engines that are scripts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.errors import BadRequest
from raydix.runtime.api import known_tokenizers
from raydix.runtime.cli import cache
from raydix.runtime.cli.engine_access import Where
from tests.runtime.api.fake_engine import FakeCluster


@pytest.mark.parametrize("is_json", [True, False])
def test_cache_prefetch_says_per_prompt_where_its_tokens_were(
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_json: bool,
) -> None:
    sources = [
        {"l1": 1, "l2": 2, "l3": 1000, "computed:not_found": 4, "computed:partial_page": 5},
        {"l3": 7},
    ]

    async def prefetch(where: Where, path: Path, cache_salt: str | None) -> list[dict[str, int]]:
        assert (where.connect, path, cache_salt) == ("engine", Path("prompts.jsonl"), None)
        return sources

    monkeypatch.setattr(cache, "prefetch_file", prefetch)
    flags = ["--json"] if is_json else []
    command = ("cache", "prefetch", "--file", "prompts.jsonl", "--connect", "engine")

    assert run(*command, *flags) == 0

    printed = capsys.readouterr().out
    if is_json:
        assert json.loads(printed) == sources
    else:
        rows = [
            [word for word in line.split() if word[0].isdigit()]
            for line in printed.splitlines()
            if "│" in line
        ]
        assert rows == [["0", "1,012", "1", "2", "1,000", "9"], ["1", "7", "0", "0", "7", "0"]]


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (["stats", "--all"], ("stats",)),
        (["flush", "--l3"], ("flush", True)),
        (
            ["attach", "--set", "cache.l3.backend=file", "--set", "cache.l3.path=x", "--json"],
            ("attach_storage", {"backend": "file", "path": str(Path("x").absolute())}),
        ),
        (
            ["attach", "--lazy", "--set", "cache.l3.backend=redis", "--json"],
            ("attach_storage", {"backend": "redis", "lazy": True}),
        ),
        (["detach", "--json"], ("detach_storage",)),
        (["explain", "r", "--json"], ("explain", "r")),
    ],
)
def test_each_verb_asks_the_running_engine_which_goes_on(
    run: Callable[..., int],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    call: tuple[object, ...],
) -> None:
    cluster.engines["mine"] = cluster.handle
    # That takes seconds, and is of no use here.
    monkeypatch.setattr(
        known_tokenizers, "load_tokenizer", lambda path: pytest.fail("read the tokenizer")
    )

    assert run("cache", *command, "--connect", "mine") == 0

    assert cluster.handle.calls == [call]
    assert not cluster.handle.is_shut_down
    assert call[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "answer", "words"),
    [
        ("attach", {"attached": "file", "detached": None}, "uses file from now on; it had no L3"),
        ("attach", {"attached": "file", "detached": "s3"}, "uses file from now on; it left s3."),
        ("detach", {"detached": "s3"}, "goes on without L3; it left s3."),
        ("detach", {"detached": None}, "goes on without L3; it had none."),
    ],
)
def test_a_change_of_storage_is_told_in_a_sentence(
    run: Callable[..., int],
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    command: str,
    answer: dict[str, str | None],
    words: str,
) -> None:
    async def call(*_: object) -> dict[str, str | None]:
        return answer

    cluster.handle.call = call  # type: ignore[method-assign, assignment]
    cluster.engines["mine"] = cluster.handle
    settings = ["--set", "cache.l3.backend=file"] if command == "attach" else []

    assert run("cache", command, *settings, "--connect", "mine") == 0

    printed = capsys.readouterr().out
    assert words in printed
    assert "None" not in printed


def test_a_request_that_is_not_remembered_is_a_bad_request(
    run: Callable[..., int],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def call(method: str, request_id: str) -> None:
        assert (method, request_id) == ("explain", "r")

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["mine"] = cluster.handle

    assert run("cache", "explain", "r", "--connect", "mine") == 1

    assert "UnknownRequest: Request 'r' is not among the last 1,024" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "what"), [("", "no prompt"), ("[1,", "prompts.jsonl")])
async def test_a_file_without_prompts_is_not_prefetched(tmp_path, content, what):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(BadRequest, match=what):
        await cache.prefetch_file(Where("raydix"), path)


@pytest.mark.parametrize("breaker", ["closed", "none"])
async def test_a_file_is_prefetched_if_there_is_an_l3(cluster, tmp_path, monkeypatch, breaker):
    async def call(method):
        assert method == "stats"
        return {"host": {"l3_breaker": breaker}}

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.txt"
    path.write_text("one\nfour\n")
    if breaker == "closed":
        assert await cache.prefetch_file(Where("mine"), path) == [{"l3": 3}, {"l3": 4}]
        return
    with pytest.raises(BadRequest, match="cache attach"):
        await cache.prefetch_file(Where("mine"), path)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_prompt_that_cannot_be_prefetched_is_named_and_the_others_are(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one"\n[-1]\n"four"\n')

    assert run("cache", "prefetch", "--file", str(path), "--connect", "mine", *flags) == 1

    printed = capsys.readouterr()
    assert "prompt 1: BadRequest: The prompt has token id -1" in printed.err
    if flags:
        assert json.loads(printed.out) == [{"l3": 3}, None, {"l3": 4}]
    else:
        rows = [line for line in printed.out.splitlines() if "│" in line]
        assert [("failed" in row) for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("flags", "salt"),
    [
        (["--cache-salt", "s"], "s"),
        (["--tenant", "research"], "research/"),
        (["--tenant", "research", "--cache-salt", "s"], "research/s"),
    ],
)
def test_the_prefixes_of_a_salt_or_of_a_tenant_are_prefetched(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    salt: str,
) -> None:
    async def call(method: str) -> dict[str, dict[str, str]]:
        return {"host": {"l3_breaker": "closed"}}

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.txt"
    path.write_text("one\n")

    assert run("cache", "prefetch", "--file", str(path), "--connect", "mine", *flags) == 0

    [hint] = cluster.links[0].sent
    assert hint.cache_salt == salt


@pytest.mark.parametrize("tenant", ["", "a b/", "a" * 65])
def test_a_name_that_no_tenant_can_have_is_refused(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tenant: str,
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n")

    assert run("cache", "prefetch", "--file", str(path), "--tenant", tenant) != 0

    assert "in --tenant must have a name of 1 to 64 letters" in capsys.readouterr().err


PIN = {
    "pin_id": "p1",
    "tenant": "alice",
    "tenant_id": 7,
    "reason": "pin",
    "pages": 2,
    "pinned_tokens": 128,
    "bytes": 1 << 20,
    "left_s": 60.0,
}


def with_pins(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(method: str) -> dict[str, object]:
        assert method == "stats"
        return {"host": {"l2_pins": [PIN]}}

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["mine"] = cluster.handle


def test_pins_are_listed_and_released_by_id(
    run: Callable[..., int],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_pins(cluster, monkeypatch)
    assert run("cache", "pins", "--connect", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [PIN]
    assert run("cache", "pins", "--connect", "mine") == 0
    assert "p1" in capsys.readouterr().out

    assert run("cache", "unpin", "p1", "--connect", "mine") == 0
    assert run("cache", "unpin", "p2", "--connect", "mine") == 1
    assert "no pin 'p2'" in capsys.readouterr().err


def test_a_file_is_pinned_prompt_by_prompt(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.txt"
    path.write_text("one\nfour\n")
    flags = ["--file", str(path), "--keep-s", "60", "--connect", "mine"]
    assert run("cache", "pin", *flags, "--json") == 0
    pinned = json.loads(capsys.readouterr().out)
    assert [each["tokens_by_source"] for each in pinned] == [{"l3": 3}, {"l3": 4}]
    assert run("cache", "pin", *flags) == 0
    assert "no pin: 0 of 3 tokens are held in L2" in capsys.readouterr().out
    assert run("cache", "pin", *flags[:2], "--keep-s", "0", "--connect", "mine") == 1


@pytest.mark.parametrize("wrong", ['{"text": "b"}', "7", "[]", "[1, -1]", "[[1]]"])
def test_a_prompt_that_cannot_be_pinned_is_told_by_its_line(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
) -> None:
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"one"\n\n{wrong}\n')
    assert run("cache", "pin", "--file", str(path), "--connect", "mine") == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "prompts.jsonl, line 3: The prompt" in error
