"""Which of several engines are left out or not waited for, and what waits while none is there."""

import asyncio
import threading

import pytest

from raydix.errors import EngineDead
from raydix.runtime.api import engine_connection
from raydix.runtime.api.service import AsyncService
from tests.runtime.api.test_client import last
from tests.runtime.api.test_service import NAMES, asked, begin, loads, service, until

__all__ = ["service"]


async def test_an_engine_of_other_weights_is_left_out_and_named_once(cluster, caplog):
    for name in NAMES:
        cluster.add(name)
    cluster.engines["b"].fingerprint = "others"
    service = AsyncService(NAMES)
    await service.connected()
    for session in range(20):
        await last(service.generate([1, 2], None, session_id=f"s{session}"))
    assert [name for name in NAMES if asked(cluster, name)] == ["a", "c"]
    await service.disconnect()
    path = cluster.engines["a"].model_path
    # Others are told of by information, which other tests may have asked for.
    assert [each for each in caplog.messages if "is not used" in each] == [
        f"engine b is not used: it serves {path}, which differs from what a serves, {path}, in "
        "fingerprint"
    ]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("b", "c", "a"), ("c", "b", "a")])
async def test_the_first_named_engine_decides_which_model_it_is(cluster, names):
    for name in NAMES:
        # What answers sooner has no say for that.
        cluster.add(name).fingerprint = f"of {name}"
    for _ in range(3):
        async with await AsyncService.connect(names) as service:
            await last(service.generate([1, 2]))
            assert (await service.limits()).fingerprint == f"of {names[0]}"
    assert loads(cluster) == [3 if name == names[0] else 0 for name in NAMES]


async def test_no_control_call_reaches_an_engine_that_is_left_out(cluster):
    for name in NAMES:
        cluster.add(name)
    cluster.engines["b"].fingerprint = "others"
    cluster.engines["b"].model_path = "elsewhere"
    # Before there is a connection, and over one.
    service = AsyncService(NAMES)
    stats = {"method": "stats"}
    assert await service.stats() == {"a": stats, "b": None, "c": stats}
    await service.connected()
    await service.flush()
    await service.detach_storage()
    await service.explain("r")
    await service.pins.shown()
    await service.retain("mine", {"end": True})
    assert await service.model_path() == cluster.engines["a"].model_path
    assert {"flush", "detach_storage", "explain"} <= {
        each for each, *_ in cluster.engines["a"].calls
    }
    asked_of_b = {each for each, *_ in cluster.engines["b"].calls}
    # Whoever looks for it again asks for nothing but what it is.
    assert asked_of_b <= {"client_facts"}
    assert not cluster.links_to("b")
    await service.disconnect()


async def test_an_engine_that_has_another_model_by_now_hears_no_control_call(cluster, service):
    b = cluster.engines["b"]
    b.is_dead = True
    cluster.links_to("b")[0].break_off()
    client = await service.connected()
    await until(lambda: not client.has_link("b"))
    cluster.add("b").fingerprint = "others"
    assert (await service.flush())["b"] is None
    assert not {"flush"} & {each for each, *_ in cluster.engines["b"].calls + b.calls}


async def test_no_engine_that_hangs_keeps_the_first_requests_from_the_others(cluster, monkeypatch):
    monkeypatch.setattr(engine_connection, "_GRACE_S", 0.01)
    for name in NAMES:
        cluster.add(name)
    thaw = cluster.frozen["a"] = threading.Event()
    try:
        async with asyncio.timeout(10):
            service = await AsyncService.connect(NAMES)
        assert (await last(service.generate([1, 2]))).outputs[0].token_ids == [1, 2]
        assert not cluster.links_to("a")
    finally:
        thaw.set()
    await until(lambda: cluster.links_to("a"))
    await service.disconnect()


async def test_new_requests_wait_as_open_ones_do_while_every_engine_may_come_back(cluster, service):
    task, _, _ = await begin(cluster, service)
    cluster.refuses_links = True
    for name in NAMES:
        cluster.links_to(name)[-1].break_off()
    client = service._connection._client
    await until(lambda: client.is_closed)
    later = asyncio.create_task(last(service.generate([8, 9], None, "s")))
    await until(lambda: len(client._askings._waiting()) == 2)
    # What needs an engine now is refused.
    with pytest.raises(EngineDead):
        await service.limits()
    assert not later.done()
    cluster.refuses_links = False
    assert (await later).outputs[0].token_ids == [8, 9]
    assert (await task).outputs[0].token_ids == [5, 6, 7]


async def test_new_requests_that_wait_fail_once_no_engine_is_left(cluster, service):
    client = await service.connected()
    cluster.refuses_links = True
    for name in NAMES:
        cluster.links_to(name)[-1].break_off()
    await until(lambda: client.is_closed)
    task = asyncio.create_task(last(service.generate([8, 9], None, "s")))
    await until(lambda: client.has_waiting)
    for name in NAMES:
        cluster.engines[name].is_dead = True
    with pytest.raises(EngineDead, match="Supervisor is gone"):
        await task
