"""What `raydix serve` shows: the lines of all actors, and how it ends while it loads."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.bootstrap.launch import find_engine
from raydix.runtime.api.client import AsyncLLM
from tests.ray_cluster import own_name
from tests.runtime.actors.serve_process import here, pid_of, running
from tests.runtime.api.small_tokenizers import byte_level_backend
from tests.shared_memory import left_since, shared_memory

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ENDS_S = 2.0
"""Within which Ctrl-C ends an engine that starts, and all that belongs to it."""
SAYS_S = 120.0
"""Within which an engine says what it is waited for to say, on a busy host, too."""
REQUEST = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
Line = dict[str, Any]


def serving(
    checkpoint: Path, name: str, *settings: str
) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    sizes = ["cache.l1.num_pages=128", "cache.l2.bytes_per_node=4MiB", "cache.l2.ratio=null"]
    sets = [word for setting in (*sizes, *settings) for word in ("--set", setting)]
    return running("-m", "raydix", "serve", str(checkpoint), "--name", name, "--log-json", *sets)


def lines_until(process: "subprocess.Popen[str]", actor: str, message: str) -> list[Line]:
    """All lines up to the first one of this actor with this text in it; else the process ends."""
    assert process.stdout is not None
    lines: list[Line] = []
    giving_up = threading.Timer(SAYS_S, process.kill)
    giving_up.start()
    try:
        for text in process.stdout:
            lines.append(json.loads(text))
            if lines[-1]["actor"] == actor and message in lines[-1]["message"]:
                return lines
    finally:
        giving_up.cancel()
    assert process.stderr is not None
    raise AssertionError(f"{actor} never says {message!r}: {lines} {process.stderr.read()}")


def left_of(driver: int) -> list[str]:
    """Processes that have a file of this driver's private folder open."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            links = [os.readlink(link) for link in (entry / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(f"/tmp/raydix-{driver}-") for link in links):
            found.append(entry.name)
    return found


def copy_of(checkpoint: Path, folder: Path) -> Path:
    shutil.copytree(checkpoint, folder)
    return folder


def make_endless(folder: Path) -> None:
    """Let reading the weights of this checkpoint never come to an end."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    pipe.replace(folder / "model.safetensors")


async def generate(name: str) -> None:
    async with await AsyncLLM.connect(name) as engine:
        async for _ in engine.generate(list(range(40)), REQUEST):
            pass


def num_links(lines: list[Line]) -> int:
    """How often the rank has told that it is linked to a Scheduler."""
    said = (each["message"] for each in lines if each["actor"] == "gpu0")
    return sum("linked to the Scheduler" in each for each in said)


def test_lines_of_every_actor_reach_the_console_and_nothing_else_does(
    checkpoint: Path, tmp_path: Path
) -> None:
    name, l3 = own_name("told"), f"cache.l3={{backend: file, path: {tmp_path}}}"
    with serving(checkpoint, name, l3) as serve:
        lines = lines_until(serve, "serve", f"engine {name} is ready")
        asyncio.run(generate(name))
        lines += lines_until(serve, "scheduler", "tokens/s")

        os.kill(pid_of(name, "gpu0"), signal.SIGKILL)
        lines += lines_until(serve, "supervisor", "gpu0 serves again as incarnation 2")
        os.kill(pid_of(name, "scheduler"), signal.SIGKILL)
        lines += lines_until(serve, "supervisor", "scheduler serves again")
        asyncio.run(find_engine(name).call("wait_all_serving"))
        # Its third link is told by itself, before or after that.
        while num_links(lines) < 3:
            lines += lines_until(serve, "gpu0", "linked to the Scheduler")

        serve.send_signal(signal.SIGTERM)
        out, err = serve.communicate(timeout=60)
        last_words = [json.loads(text) for text in out.splitlines()]
        assert [each for each in last_words if "lost" in each["message"]] == []
        lines += last_words
        assert serve.returncode == 0
        assert err == ""

    said = {actor: [] for actor in ("serve", "supervisor", "gpu0", "scheduler", "host", "storage1")}
    for line in lines:
        said[line["actor"]].append(line["message"])
    for actor, start in (
        ("serve", "Ray cluster joined in "),
        ("serve", "resources reserved in "),
        ("gpu0", "torch imported in "),
        ("gpu0", "weights read: "),
        ("host", "arena of 4MiB made in "),
        ("host", "the link to the Scheduler is lost"),
        ("storage1", "linked to HostMemory"),
        ("scheduler", "0 running, 0 waiting; prompt "),
        # Whoever notices it first says why.
        ("supervisor", "gpu0, incarnation 1, ended ("),
        ("serve", "stopping: requests may go on for 10 s"),
    ):
        assert any(each.startswith(start) for each in said[actor]), (actor, start, said)
    assert num_links(lines) == 3


@pytest.mark.parametrize("has_gpu_actor", [pytest.param(False, marks=pytest.mark.part), True])
def test_ctrl_c_while_an_engine_starts_ends_it_and_all_of_it(
    checkpoint: Path, tmp_path: Path, has_gpu_actor: bool
) -> None:
    memory_before = shared_memory()
    folder = copy_of(checkpoint, tmp_path / "endless")
    with serving(folder, own_name("endless")) as serve:
        lines_until(serve, "serve", "configuration checked")
        # No process of a rank is there yet: the Supervisor comes first.
        make_endless(folder)
        if has_gpu_actor:
            lines_until(serve, "gpu0", "torch imported")
        stopped_s = time.monotonic()
        serve.send_signal(signal.SIGINT)
        assert serve.wait(timeout=60) == 130
        while left_of(serve.pid):
            assert time.monotonic() - stopped_s < here(ENDS_S)
        assert time.monotonic() - stopped_s < here(ENDS_S)

        out, err = serve.communicate()
        messages = [json.loads(text)["message"] for text in out.splitlines()]
        assert "stopping before the engine serves" in messages
        assert err == ""
    assert left_since(memory_before) == set()
    assert list(Path("/tmp").glob(f"raydix-{serve.pid}-*")) == []


LLM_SCRIPT = """
import sys, time
from raydix import LLM
try:
    LLM(sys.argv[1])
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("is_script", [True, pytest.param(False, marks=pytest.mark.part)])
def test_ctrl_c_while_ray_starts_ends_a_script_and_generate_and_leaves_no_process(
    checkpoint: Path, tmp_path: Path, is_script: bool
) -> None:
    command = ["-c", LLM_SCRIPT, str(checkpoint)]
    if not is_script:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("[1, 2]")
        command = ["-m", "raydix", "generate", str(checkpoint), "--prompts-file", str(prompts)]
    with running(*command) as process:
        # The first thing of a private cluster.
        while not list(Path("/tmp").glob(f"raydix-{process.pid}-*")):
            assert process.poll() is None
            time.sleep(0.05)
        stopped_s = time.monotonic()
        process.send_signal(signal.SIGINT)

        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        if is_script:
            assert process.returncode == 0
            assert float(out) - stopped_s < here(ENDS_S)
        else:
            assert process.returncode == 130
        while left_of(process.pid):
            assert time.monotonic() - stopped_s < here(10 * ENDS_S)


def test_a_broken_tokenizer_is_told_before_any_actor_is_made(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = copy_of(checkpoint, tmp_path / "broken")
    byte_level_backend().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": 1')
    with serving(folder, own_name("broken")) as serve:
        out, err = serve.communicate(timeout=120)
    assert serve.returncode == 1
    (line,) = err.splitlines()
    assert line.startswith(f"CheckpointError: The tokenizer in {folder} cannot be loaded")
    assert {json.loads(text)["actor"] for text in out.splitlines()} == {"serve"}
