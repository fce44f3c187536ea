"""Control calls without Ray: their results, their errors, and a Supervisor that goes."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError, RayError, RaySystemError, RayTaskError, RpcError

from raydix.errors import BadRequest, ConfigError, EngineDead, RaydixError
from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap import control_client, engine_handle
from raydix.runtime.actors.bootstrap.control_client import EngineAway, call_supervisor
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle, OwnEngine, typed_error
from raydix.runtime.actors.bootstrap.log_follower import LogFollower
from raydix.runtime.actors.bootstrap.placement import Placement
from raydix.runtime.actors.engine_record import EngineRecord, find_record
from raydix.runtime.actors.supervision.control_calls import Call, CallKind
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.actors.supervision.engine_facts import ClientFacts
from tests.runtime.actors.links.link_ends import short_folder

SECRET = b"s" * 32


class Engine:
    """Stands in for a Supervisor: what a desk calls."""

    def __init__(self, folder: str) -> None:
        self.record = EngineRecord(
            control_address=f"unix:{folder}/control.sock",
            client_address="unix:/nowhere",
            secret=SECRET,
        )
        self.is_over = asyncio.Event()
        self.may_attach = asyncio.Event()
        self.attached: list[str] = []
        self.num_waiting = 0
        self.exits: list[bool] = []

        calls = {
            "echo": Call(lambda *values: list(values)),
            "attach": Call(self.attach),
            "fail": Call(self.fail),
            "break": Call(lambda: {}["nothing"]),
            "wait_ended": Call(self.wait_ended, CallKind.WAITS),
            "shutdown": Call(self.shutdown, CallKind.ENDS),
        }
        self.desk = ControlDesk("mine", self.record, calls, lambda: self.exits.append(True))
        self.facts = ClientFacts(
            name="mine",
            model_path="/nowhere",
            fingerprint="weights",
            max_model_len=8,
            vocab_size=8,
            max_waiting_requests=8,
            eos_token_ids=(1, 2),
        )
        self.handle = EngineHandle(self.facts, self.record)

    async def attach(self, name: str) -> None:
        await self.may_attach.wait()
        self.attached.append(name)

    async def fail(self) -> None:
        raise ConfigError("cache.l3 is wrong")

    async def wait_ended(self) -> None:
        self.num_waiting += 1
        try:
            await self.is_over.wait()
        finally:
            self.num_waiting -= 1
        raise EngineDead("engine mine has given up: gpu0 ended 6 times")

    async def shutdown(self) -> None:
        self.is_over.set()

    async def until(self, num_waiting: int) -> None:
        async with asyncio.timeout(10):
            while self.num_waiting != num_waiting:
                await asyncio.sleep(0.001)


class Own:
    """Stands for what was made for an engine: a second end could be that of a later one's Ray."""

    def __init__(self) -> None:
        self.num_ends = 0

    def end(self) -> None:
        self.num_ends += 1


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(engine_record, "_ROOT", tmp_path)
    with short_folder() as folder:
        made = Engine(folder)
        await made.desk.open()
        yield made
        await made.desk.close()


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", b"bytes", [1, [2]], {"a": {3: 4}}])
async def test_a_call_brings_arguments_there_and_the_result_back(
    engine: Engine, value: Any
) -> None:
    assert await engine.handle.call("echo", value, 7) == [value, 7]


async def test_an_error_keeps_its_type_and_text(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"^cache\.l3 is wrong$"):
        await engine.handle.call("fail")
    with pytest.raises(BadRequest, match="no call named 'no_such'"):
        await engine.handle.call("no_such")


@pytest.mark.parametrize("value", [object(), 2**80, [object()]])
async def test_an_argument_that_cannot_travel_is_refused_at_once(
    engine: Engine, value: Any
) -> None:
    with pytest.raises(BadRequest, match=r"^echo: "):
        await engine.handle.call("echo", value)


async def test_a_bug_of_one_call_is_told_and_others_are_served(engine: Engine) -> None:
    with pytest.raises(RaydixError, match="KeyError"):
        await engine.handle.call("break")
    assert await engine.handle.call("echo") == []


async def test_who_does_not_know_the_secret_calls_nothing(engine: Engine) -> None:
    stranger = replace(engine.record, secret=b"x" * 32)
    with pytest.raises(EngineDead):
        await call_supervisor("mine", stranger, "shutdown")
    assert not engine.is_over.is_set()


async def test_a_question_that_a_stopped_process_leaves_open_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "_ANSWER_S", 0.05)
    with pytest.raises(EngineAway, match=r"mine does not answer for 0\.05 s"):
        await control_client.ask_supervisor("mine", engine.record, "wait_ended")
    assert await engine.handle.call("echo") == []


async def test_who_waits_for_the_end_hears_why_the_engine_gave_up(engine: Engine) -> None:
    waiting = asyncio.create_task(engine.handle.wait_ended())
    await engine.until(num_waiting=1)
    engine.is_over.set()
    with pytest.raises(EngineDead, match="given up: gpu0 ended 6 times") as told:
        await waiting
    assert not isinstance(told.value, EngineAway), "it was reached"


async def test_a_wait_ends_with_its_caller_and_an_act_does_not(engine: Engine) -> None:
    waiting = asyncio.create_task(engine.handle.wait_ended())
    attaching = asyncio.create_task(engine.handle.call("attach", "file"))
    await engine.until(num_waiting=1)
    waiting.cancel()
    attaching.cancel()
    await engine.until(num_waiting=0)
    engine.may_attach.set()
    async with asyncio.timeout(10):
        while engine.attached != ["file"]:
            await asyncio.sleep(0.001)


async def test_the_process_ends_once_the_shutdown_was_answered(engine: Engine) -> None:
    await engine.handle.shutdown()
    async with asyncio.timeout(10):
        while engine.exits != [True]:
            await asyncio.sleep(0.001)


async def test_what_was_made_for_an_engine_is_given_back_once(engine: Engine) -> None:
    own = Own()
    handle = EngineHandle(engine.handle.facts, engine.handle.record, cast(OwnEngine, own))
    await asyncio.gather(handle.shutdown(), handle.shutdown())
    await handle.shutdown()
    assert own.num_ends == 1


def test_what_an_engine_has_reserved_is_given_back_although_its_supervisor_cannot_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[object] = []

    def kill(supervisor: object) -> None:
        raise RpcError("the head does not answer")

    monkeypatch.setattr(engine_handle.ray, "kill", kill)
    monkeypatch.setattr(engine_handle, "release", released.append)
    own = OwnEngine(
        supervisor=None,
        placement=cast(Placement, "placement"),
        cluster=None,
        log=cast(LogFollower, SimpleNamespace(finish=lambda: None)),
    )
    with pytest.raises(RpcError):
        own.end()
    assert released == ["placement"]


async def test_a_call_under_way_ends_with_its_link_which_says_nothing_of_the_engine(
    engine: Engine,
) -> None:
    waiting = asyncio.create_task(engine.handle.wait_ended())
    await engine.until(num_waiting=1)
    await engine.desk.close()
    with pytest.raises(EngineAway, match="the link to the Supervisor of engine mine is lost"):
        await waiting


async def test_a_supervisor_that_is_gone_is_engine_dead_and_needs_no_shutdown(
    engine: Engine,
) -> None:
    await engine.desk.close()
    with pytest.raises(
        EngineAway, match=r"Supervisor of engine mine is gone: nobody listens .* Start the engine"
    ):
        await engine.handle.call("echo")
    await engine.handle.shutdown()


async def test_who_stops_an_engine_that_was_stopped_does_not_say_that_it_ended_by_itself(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.desk.close()
    with caplog.at_level(logging.INFO):
        await engine.handle.shutdown()
    [told] = [record.getMessage() for record in caplog.records]
    assert told == "engine mine has ended already, or is out of reach"


async def test_an_engine_is_found_while_its_desk_is_open(engine: Engine) -> None:
    assert find_record("mine") == engine.record
    with pytest.raises(ConfigError, match="The name mine is taken"):
        await ControlDesk("mine", engine.record, {}, lambda: None).open()
    engine.desk.withdraw()
    assert find_record("mine") is None


def test_facts_survive_the_way_through_an_answer(tmp_path: Path) -> None:
    facts = Engine(str(tmp_path)).facts
    values = facts.to_values()
    assert ClientFacts.from_values({**values, "eos_token_ids": [1, 2]}) == facts


def test_ray_s_paragraph_about_a_dead_process_becomes_a_phrase() -> None:
    paragraph = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: GpuActor\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: Some common causes include: ..."
    )
    error = typed_error(RayActorError(error_msg=paragraph), "gpu0")
    assert str(error) == "gpu0 is gone: its process ended, SYSTEM_ERROR"
    assert str(typed_error(RayActorError(), "gpu0")) == "gpu0 is gone: its process ended"


@pytest.mark.parametrize(
    "said",
    [
        "The actor died because its node has died. Node Id: 3fa1.\n\tMore of it.",
        "The actor is dead because its node has died.",
        "its owner's node was terminated expectedly",
    ],
)
def test_a_node_that_was_lost_is_told_as_that(said: str) -> None:
    told = str(typed_error(RayActorError(error_msg=said), "engine prod/2"))
    assert told == (
        "engine prod/2 is gone: the node of the Ray cluster where it ran was lost; start it again "
        "on another one"
    )


@pytest.mark.parametrize(
    "error",
    [
        RpcError("failed to connect to all addresses\nGRPC paragraph"),
        RaySystemError("failed to connect to all addresses\nmore"),
    ],
)
def test_a_cluster_that_does_not_answer_is_told_with_what_to_do(error: RayError) -> None:
    told = typed_error(error, "service prod")
    assert isinstance(told, EngineDead)
    assert str(told).startswith("service prod cannot be reached: a node of the Ray cluster was ")
    assert "failed to connect to all addresses" in str(told)
    assert "\n" not in str(told)
    assert "ray status shows what is left" in str(told)
    other = typed_error(RaySystemError("System error: No module named 'x'"), "service prod")
    assert not isinstance(other, EngineDead)


def test_an_error_of_ours_has_no_traceback_of_ray_however_many_actors_pass_it_on() -> None:
    """Ray's own class for it is one of ours, too."""
    error = ConfigError("cache.l3.path is nowhere")
    once = RayTaskError("open", "a traceback", error).as_instanceof_cause()
    twice = RayTaskError("start", "another traceback", once).as_instanceof_cause()

    assert isinstance(once, ConfigError)
    for passed_on in (once, twice):
        assert str(typed_error(passed_on, "storage")) == "cache.l3.path is nowhere"


def test_a_typed_error_stays_what_it_is() -> None:
    error = ConfigError("cache.l3 is wrong")
    assert typed_error(error, "gpu0") is error
