"""A service whose engines come and go, behind one handle."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest

from raydix.errors import EngineDead
from raydix.runtime.api import engine_connection, routing_figures, service_name, versions
from raydix.runtime.api.engine_place import EnginePlace
from raydix.runtime.api.service import AsyncService
from tests.runtime.api.fake_engine import echo
from tests.runtime.api.test_client import last, never
from tests.runtime.api.test_service import asked, until


@pytest.fixture
def members(cluster, monkeypatch):
    """The engines of the service `made-up`, as the Ray cluster would tell them."""
    names = []

    async def find_places(service, where):
        assert service == "made-up"
        return [EnginePlace(name) for name in names]

    def join(name):
        cluster.add(name)
        names.append(name)

    def kill(name):
        names.remove(name)
        cluster.engines[name].is_dead = True
        cluster.links_to(name)[-1].break_off()

    monkeypatch.setattr(service_name, "find_places", find_places)
    monkeypatch.setattr(engine_connection, "_LOOK_S", 0.01)
    return SimpleNamespace(join=join, kill=kill)


async def test_engines_of_a_service_come_and_go(cluster, members):
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        assert (await last(service.generate([1]))).outputs[0].token_ids == [1]
        members.join("b")
        await until(lambda: cluster.links_to("b"))
        members.kill("a")
        assert (await last(service.generate([2]))).outputs[0].token_ids == [2]
        assert [each.token_ids.tolist() for each in asked(cluster, "b")] == [[2]]
        await until(lambda: [one.name for one in service._connection.engines] == ["b"])
        assert pickle.loads(pickle.dumps(service)).name == "made-up"


async def test_a_service_whose_engines_come_and_go_keeps_nothing_of_those_that_are_gone(
    cluster, members, monkeypatch
):
    monkeypatch.setattr(routing_figures, "_KEPT_S", 0.0)
    members.join("e0")
    async with await AsyncService.find("made-up") as service:
        connection = service._connection
        for number in range(5):
            before, name = f"e{number}", f"e{number + 1}"
            await last(service.generate([1]))
            members.join(name)
            await until(lambda name=name: cluster.links_to(name))
            members.kill(before)
            await until(lambda name=name: set(connection._versions.engines) == {name})
            await until(lambda name=name: {name}.issuperset(service.routing_figures.num_routed))


def fall_silent(cluster):
    """No engine answers any more."""
    cluster.answer = never
    for link in cluster.links:
        link._answer = never


async def test_requests_wait_while_a_service_has_no_engine(cluster, members):
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        fall_silent(cluster)
        task = asyncio.create_task(last(service.generate([5, 6])))
        await until(lambda: asked(cluster, "a"))
        members.kill("a")
        await until(lambda: not service._connection.engines)
        assert not task.done()
        cluster.answer = echo
        members.join("b")
        assert (await task).outputs[0].token_ids == [5, 6]


async def test_a_service_without_an_engine_for_long_fails_its_requests(
    cluster, members, monkeypatch
):
    with pytest.raises(EngineDead, match="The service made-up has no engine at the moment"):
        await AsyncService.find("made-up")
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        fall_silent(cluster)
        task = asyncio.create_task(last(service.generate([5, 6])))
        await until(lambda: asked(cluster, "a"))
        monkeypatch.setattr(engine_connection, "_NOBODY_S", 0.0)
        members.kill("a")
        with pytest.raises(EngineDead, match="has no engine since"):
            await task


async def test_what_began_with_a_version_of_a_service_goes_on_at_no_other(
    cluster, members, monkeypatch
):
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        fall_silent(cluster)
        begun = asyncio.create_task(last(service.generate([5, 6])))
        await until(lambda: asked(cluster, "a"))
        cluster.answer = echo

        # As many engines of other weights: what comes now is for them.
        members.join("b")
        cluster.engines["b"].fingerprint = "others"
        await until(lambda: cluster.links_to("b"))
        assert (await last(service.generate([7]))).outputs[0].token_ids == [7]
        assert (await service.limits()).fingerprint == "others"
        assert [each.token_ids.tolist() for each in asked(cluster, "a")] == [[5, 6]]

        # The engine is killed, and another one of the same weights comes.
        members.kill("a")
        members.join("c")
        assert (await begun).outputs[0].token_ids == [5, 6]
        assert [each.token_ids.tolist() for each in asked(cluster, "b")] == [[7]]
        assert [each.token_ids.tolist() for each in asked(cluster, "c")] == [[5, 6]]


async def test_the_same_weights_with_another_chat_template_are_another_version(cluster, members):
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        members.join("b")
        cluster.engines["b"].tokenizer = "of another template"
        await until(lambda: cluster.links_to("b"))
        assert (await last(service.generate([7]))).outputs[0].token_ids == [7]
        assert not asked(cluster, "a")


async def test_what_no_engine_of_its_version_can_end_fails_and_says_why(
    cluster, members, monkeypatch
):
    members.join("a")
    async with await AsyncService.find("made-up") as service:
        fall_silent(cluster)
        begun = asyncio.create_task(last(service.generate([5, 6])))
        await until(lambda: asked(cluster, "a"))
        cluster.answer = echo
        members.join("b")
        cluster.engines["b"].fingerprint = "others"
        await until(lambda: cluster.links_to("b"))
        monkeypatch.setattr(versions, "_GONE_S", 0.0)
        members.kill("a")
        with pytest.raises(EngineDead, match="served no more, as a later version"):
            await begun
        assert (await last(service.generate([7]))).outputs[0].token_ids == [7]
        assert [each.token_ids.tolist() for each in asked(cluster, "b")] == [[7]]
