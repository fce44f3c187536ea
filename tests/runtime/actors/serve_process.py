"""`raydix serve`, and clients of it, as processes of their own."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from raydix.runtime.actors.bootstrap.launch import find_engine
from tests.network_namespace import OtherHost

ROOT = Path(__file__).parents[3]
SECRET = "0123456789abcdef" * 4
CLIENT = """
import asyncio, sys, time
from raydix.errors import EngineDead
from raydix.runtime.api.client import AsyncLLM

async def generate(engine, max_tokens):
    params = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    async for output in engine.generate(list(range(40)), params):
        if len(output.outputs[0].token_ids) == 8:
            print("streams", flush=True)
    return len(output.outputs[0].token_ids)

async def main():
    engine = await AsyncLLM.connect(*sys.argv[1:])
    try:
        # Again and again: a quick engine may be through with one before it is ended.
        while True:
            await generate(engine, 1500)
    except EngineDead as error:
        print("dead", time.monotonic(), error, flush=True)
    began_s = time.monotonic()
    try:
        await generate(engine, 8)
    except EngineDead as error:
        print("still", time.monotonic() - began_s, error, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("again", await generate(engine, 9), flush=True)

asyncio.run(main())
"""
"""Streams from an engine until that ends, asks again at once, and once more when it is told to."""


def here(seconds: float) -> float:
    """The time that this takes where others have their share of the cores, too."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def user_environment() -> dict[str, str]:
    """The environment as users have it: a private cluster, with token authentication."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAYDIX_SECRET": SECRET}
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        environment.pop(name, None)
    return environment


@contextlib.contextmanager
def running(*command: str, host: OtherHost | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that nothing leaves behind, whatever fails; `host`: where it runs."""
    words = [sys.executable, *command]
    process = subprocess.Popen(
        words if host is None else host.command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=user_environment(),
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def serving(
    checkpoint: Path, name: str, *options: str
) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    settings = ["cache.l1.num_pages=128", "cache.l2.bytes_per_node=4MiB", "cache.l2.ratio=null"]
    sets = [word for setting in settings for word in ("--set", setting)]
    return running("-m", "raydix", "serve", str(checkpoint), "--name", name, *sets, *options)


def line_of(process: subprocess.Popen[str], word: str) -> str:
    """The next line with this word on standard output."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    assert process.stderr is not None
    raise AssertionError(f"no line with {word!r}: {process.stderr.read()}")


def pid_of(name: str, actor: str) -> int:
    """The process of a running engine's actor, asked for without Ray."""
    health = asyncio.run(find_engine(name).call("health"))
    return int(health[actor]["pid"])
