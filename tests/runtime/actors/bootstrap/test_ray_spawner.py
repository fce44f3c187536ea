"""GPU actors on a cluster of Ray that believes in GPUs which nobody has."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from raydix.runtime.actors.bootstrap import ray_spawner
from raydix.runtime.actors.bootstrap.placement import Placement
from raydix.runtime.actors.bootstrap.ray_spawner import (
    RaySpawner,
    use_assigned_device,
    use_cores,
)
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.config.loading import load_config

ROOT = Path(__file__).parents[4]
DRIVER = """
import asyncio, json, logging, os, signal, sys, time
from functools import partial
import ray
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.sleeping_runner import build_sleeping_model

ray.init(address="local", namespace="raydix", include_dashboard=False, num_cpus=4, num_gpus=2,
         _temp_dir=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
config = load_config({
    "model": {"path": "unused", "device": "cuda", "max_model_len": 256},
    "parallel": {"dp": 2},
    "cache": {"page_size": 16, "l1": {"num_pages": 32}, "l2": None},
})
engine = start_engine(config, "spares", build_model=partial(build_sleeping_model, step_s=0.0))

def visible_and_pid(_actor):
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("NCCL_NVLS_ENABLE"), os.getpid()

async def find(*names):
    while True:
        for name in names:
            try:
                found = ray.get_actor(name, namespace="raydix")
                if (await found.__ray_call__.remote(visible_and_pid))[1] is not None:
                    return found
                await asyncio.sleep(0.05)  # It has not been told its environment yet.
            except (ValueError, ray.exceptions.RayActorError):
                # There is none yet, or Ray still has the one that was killed.
                await asyncio.sleep(0.05)

async def kill_gpu1():
    killed = (await engine.call("health"))["gpu1"]["pid"]
    os.kill(killed, signal.SIGKILL)
    while (now := (await engine.call("health"))["gpu1"])["pid"] in (None, killed):
        await asyncio.sleep(0.05)
    await engine.call("wait_all_serving")
    return now

async def main():
    # Too early for a spare, unless this machine is slow: the next one is a process of its own.
    await kill_gpu1()
    second = await find("raydix:spares:gpu1", "raydix:spares:gpu1.2")
    without_spare = await second.__ray_call__.remote(visible_and_pid)
    spare = await find("raydix:spares:gpu1.3")
    visible, multicast, spare_pid = await spare.__ray_call__.remote(visible_and_pid)
    now = await kill_gpu1()
    await engine.shutdown()
    print(json.dumps({
        "visible": [without_spare[0], visible], "multicast": multicast, "spare": spare_pid,
        "now": now,
    }))

asyncio.run(main())
ray.shutdown()
"""


@pytest.mark.parametrize("is_exported", [True, False])
async def test_metrics_go_to_rays_agent_unless_the_configuration_says_otherwise(
    is_exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    async def entered(_self: object, made: Any, *_more: object) -> Any:
        return made

    async def make(_self: object, *asked: Any) -> None:
        given.append(asked[-1])

    monkeypatch.setattr(RaySpawner, "_make", make)
    monkeypatch.setattr(RaySpawner, "_enter", entered)
    config = load_config({"model": {"path": "unused"}, "ray": {"export_metrics": is_exported}})
    spawner = RaySpawner(
        engine="e",
        placement=Placement(None, True, "node"),  # type: ignore[arg-type]
        config=config,
        build_model=lambda *_: None,  # type: ignore[arg-type, return-value]
        prepare_spare=lambda: None,
    )

    async def spawned_l2(*_: object, exporter: Any, **_more: object) -> None:
        given.append({"exporter": exporter})

    monkeypatch.setattr("raydix.runtime.actors.bootstrap.ray_spawner.spawn_l2", spawned_l2)
    await spawner.spawn(ActorKind.SCHEDULER, "name", log_path="log")
    await spawner.spawn_l2("name", 1, log_path="log")
    assert [each["exporter"] is not None for each in given] == [is_exported] * 2


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_a_gpu_actor_that_is_made_again_is_the_spare_process() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "6,7"}
    environment.pop("RAY_ADDRESS", None)

    # Not pytest's: paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="raydix-spares-", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, folder],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
        )

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["now"] == {"pid": told["spare"], "incarnation": 3, "serves": True}
    # Both see what their node sees, and have the environment of a rank.
    assert (told["visible"], told["multicast"]) == (["6,7", "6,7"], "0")


class Rank:
    """Notes the device that it is to use."""

    device: int | None = None

    def use_device(self, index: int) -> None:
        self.device = index


@pytest.mark.parametrize(
    ("visible", "assigned", "index"), [("4,5,6", "5", 1), (None, "2", 2), ("", "0", 0)]
)
def test_a_rank_sees_all_devices_of_its_node_and_loads_on_its_own(
    visible: str | None, assigned: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", assigned)
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: [assigned])
    monkeypatch.setattr(ray_spawner, "_variable_of", lambda pid, name: visible)
    rank = Rank()

    assert use_assigned_device(rank) == rank.device == index  # type: ignore[arg-type]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_the_variables_of_another_process_are_those_it_was_started_with() -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={"A": "1=2", "AB": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = [ray_spawner._variable_of(process.pid, name) for name in ("A", "AB", "B")]
        process.communicate()

    assert found == ["1=2", "3", None]


class FakeCluster:
    """Ray's part of two GPU actors: whoever asks for a device gets the first that is not given."""

    def __init__(self) -> None:
        self.processes: dict[str, FakeProcess] = {}
        """The latest by name."""
        self.waits_for: dict[str, threading.Event] = {}
        """What the head waits for, before it makes an actor of a name."""

    def remote(self, _cls: type) -> "FakeCluster":
        return self

    def options(self, *, name: str, num_gpus: int = 0, **_: Any) -> "FakeProcess":
        given = [process.given for process in self.processes.values() if process.lives]
        free = (device for device in range(2) if device not in given)
        waits_for = self.waits_for.get(name)
        self.processes[name] = FakeProcess(next(free) if num_gpus else None, waits_for)
        return self.processes[name]


class FakeProcess:
    """An actor's process, and the handle and the method by which Ray reaches it."""

    def __init__(self, given: int | None, waits_for: threading.Event | None) -> None:
        self._waits_for = waits_for
        self.given = given
        """The device that Ray counts for it."""
        self.device = given
        self.lives = True
        self.is_spare = False
        self.incarnation: int | None = None

    def remote(self, *arguments: Any, **constructed: Any) -> Any:
        """Make the actor, or call a function in it."""
        if constructed:
            if self._waits_for is not None:
                self._waits_for.wait(10)
            self.incarnation = constructed["incarnation"]
            return self
        answer = asyncio.get_running_loop().create_future()
        if self.lives:
            answer.set_result(self._answer(*arguments))
        else:
            answer.set_exception(RayActorError())
        return answer

    @property
    def __ray_call__(self) -> "FakeProcess":
        return self

    def _answer(self, function: Callable[..., Any], *arguments: Any) -> int | None:
        match function.__name__, arguments:
            case "enter_process", _:
                return os.getpid()
            case "use_assigned_device", _:
                return self.given
            case "use_device", [device]:
                self.device = device
            case "wait_as_spare", _:
                self.is_spare = True
            case "take_over", [renewed, device]:
                self.device, self.incarnation = device, renewed["incarnation"]
        return None


class Ranks:
    """Two ranks, as their keepers have them made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = FakeCluster()
        monkeypatch.setattr(ray, "remote", self.cluster.remote)
        monkeypatch.setattr(ray, "kill", lambda process: None)
        monkeypatch.setattr(ray_spawner, "_SPARE_AFTER_S", 0.0)
        monkeypatch.setattr(ray_spawner, "PlacementGroupSchedulingStrategy", lambda group: group)
        self._spawner = RaySpawner(
            engine="e",
            placement=Placement(None, is_own=False, node_id="node"),  # type: ignore[arg-type]
            config=load_config(
                {"model": {"path": "unused", "device": "cuda"}, "cache": {"l2": None}}
            ),
            build_model=None,  # type: ignore[arg-type]
            prepare_spare=lambda: None,
        )
        self._incarnations = [0, 0]
        self.serving: list[Any] = [None, None]

    async def start(self, rank: int) -> "FakeProcess":
        """The next incarnation of a rank; the last one has ended."""
        if self.serving[rank] is not None:
            self.serving[rank].lives = False
        self._incarnations[rank] += 1
        running = await self._spawner.spawn(
            ActorKind.GPU, f"gpu{rank}", log_path="", incarnation=self._incarnations[rank]
        )
        self.serving[rank] = running._handle  # type: ignore[attr-defined]
        return self.serving[rank]  # type: ignore[no-any-return]

    async def spare(self, rank: int) -> "FakeProcess":
        """The process that waits to be the rank's next incarnation."""
        name = f"gpu{rank}.{self._incarnations[rank] + 1}"
        while name not in self.cluster.processes or not self.cluster.processes[name].is_spare:
            await asyncio.sleep(0)
        return self.cluster.processes[name]


async def test_a_rank_keeps_its_device_when_no_spare_is_ready_after_others_took_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch)
    for rank in range(2):
        await ranks.start(rank)
    spares = [await ranks.spare(rank) for rank in range(2)]
    assert [await ranks.start(rank) for rank in range(2)] == spares

    again = await ranks.start(1)

    assert again not in spares
    assert [process.device for process in ranks.serving] == [0, 1]
    assert [process.incarnation for process in ranks.serving] == [2, 3]


async def test_a_spare_that_ended_while_it_waited_costs_no_incarnation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch)
    await ranks.start(0)
    spare = await ranks.spare(0)
    spare.lives = False

    second = await ranks.start(0)

    assert second is not spare
    assert (second.incarnation, second.device) == (2, 0)
    assert await ranks.spare(0) is not spare


async def test_a_spare_that_comes_after_the_incarnation_that_it_was_made_for_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, head_answers = Ranks(monkeypatch), threading.Event()
    killed: list[FakeProcess] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    ranks.cluster.waits_for["gpu0.2"] = head_answers
    await ranks.start(0)
    while "gpu0.2" not in ranks.cluster.processes:
        await asyncio.sleep(0)
    second = await ranks.start(0)
    assert (second.incarnation, second.device) == (2, 0)

    head_answers.set()
    while not killed:
        await asyncio.sleep(0)
    assert killed == [ranks.cluster.processes["gpu0.2"]]


@pytest.mark.parametrize(("own", "expected"), [(None, "3"), ("2", "2")])
def test_threads_that_the_user_has_set_stay(
    own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SimpleNamespace(get_node_id=lambda: "n")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: node)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "n", "Resources": {"CPU": 7}}])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(ray_spawner, "_variable_of", lambda pid, name: own)
    # Ray has set it by then, or it is the user's.
    monkeypatch.setenv("OMP_NUM_THREADS", own or "1")
    use_cores(object(), 2)
    assert os.environ["OMP_NUM_THREADS"] == expected
