"""The actor that publishes KV events, beside a stand-in for the Scheduler and in a whole engine."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio
import zmq.auth

from raydix.errors import ConfigError
from raydix.runtime.actors import kv_publisher
from raydix.runtime.actors.kv_publisher import KvPublisherActor, KvPublisherSetup
from raydix.runtime.actors.links.link import Link
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.cache.page_key import pack_tokens, root_key
from raydix.runtime.config.events import EventsSection
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.kv_events import KvEvent, KvNews, Tier, TierCleared
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.sleeping_runner import build_sleeping_model
from tests.kv_subscriber import KvSubscriber
from tests.naive_indexer import Overlap
from tests.runtime.cache.test_kv_publication import PROMPT, in_l1, in_tier, keys_of
from tests.simulation.layouts import LAYOUT

SECRET = b"secret" * 6
ANY_FREE = {"port": 0, "replay_port": 0}
PATIENCE_S = 120.0


class StandIn:
    """Owns: a listener where the Scheduler is looked for, and the links of its follower."""

    def __init__(self) -> None:
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self._listener: Listener | None = None

    async def open(self, folder: Path) -> str:
        own = Hello(role=Role.SCHEDULER, name="stand-in", incarnation=1, pid=0)
        address = f"unix:{folder}/s.sock"
        self._listener = await listen(address, own, SECRET, self._serve)
        return address

    async def _serve(self, link: Link) -> None:
        assert link.hello.role is Role.FOLLOWER
        self.links.put_nowait(link)
        await link.receive()

    async def close(self) -> None:
        assert self._listener is not None
        await self._listener.close()


def tell(link: Link, *events: KvEvent, is_whole: bool = True) -> None:
    link.send(KvNews(events=events, is_whole=is_whole))


async def until(holds: Callable[[], bool], subscriber: KvSubscriber) -> None:
    """Wait until this holds, and raise what the indexer has found."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        subscriber.raise_failure()
        assert time.monotonic() < deadline_s, "it never came to hold"
        await asyncio.sleep(0.01)


async def publisher(address: str, section: EventsSection) -> KvPublisherActor:
    actor = KvPublisherActor(name="test", incarnation=1)
    await actor.start(
        KvPublisherSetup(
            section=section,
            layout=LAYOUT,
            num_lanes=1,
            scheduler_address=address,
            secret=SECRET,
        )
    )
    return actor


@pytest.fixture
async def stand_in() -> Any:
    made = StandIn()
    yield made
    await made.close()


def subscriber_of(context: Any, stats: dict[str, Any], curve: Any = None) -> KvSubscriber:
    return KvSubscriber(context, stats["endpoints"][0], stats["replay_endpoints"][0], curve)


async def test_the_next_scheduler_is_followed_and_only_what_differs_is_told(
    stand_in: StandIn, tmp_path: Path
) -> None:
    actor = await publisher(await stand_in.open(tmp_path), EventsSection(**ANY_FREE))
    context = zmq.asyncio.Context()
    subscriber = subscriber_of(context, actor.stats())
    first = await stand_in.links.get()
    tell(first, in_l1(PROMPT), in_tier(Tier.L2, keys_of(PROMPT)))
    overlap = partial(subscriber.indexer.overlap, PROMPT, 4, None)
    await until(lambda: overlap() == Overlap(3, 3, 3), subscriber)

    first.close()
    second = await stand_in.links.get()
    tell(second, in_tier(Tier.L2, keys_of(PROMPT)))
    await until(lambda: overlap() == Overlap(0, 3, 3), subscriber)

    # What does not fit together is asked anew.
    tell(second, in_tier(Tier.L2, keys_of(PROMPT)))
    third = await stand_in.links.get()
    tell(third, in_l1(PROMPT[:4]))
    await until(lambda: overlap() == Overlap(1, 1, 1), subscriber)
    tell(third, TierCleared(tier=Tier.L1, lane=0))
    await until(lambda: overlap() == Overlap(0, 0, 0), subscriber)

    assert actor.stats()["links"] == 3
    await subscriber.close()
    await actor.stop()
    context.destroy(linger=0)


async def test_who_has_no_key_hears_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    (keys / "clients").mkdir(parents=True)
    zmq.auth.create_certificates(keys, "server")
    _, own_file = zmq.auth.create_certificates(tmp_path, "known")
    _, other_file = zmq.auth.create_certificates(tmp_path, "stranger")
    (tmp_path / "known.key").rename(keys / "clients" / "known.key")
    server, _ = zmq.auth.load_certificate(keys / "server.key")

    def with_keys(file: str, socket: Any) -> None:
        socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(file)
        socket.curve_serverkey = server

    section = EventsSection(**ANY_FREE, curve=str(keys))
    actor = await publisher(await stand_in.open(tmp_path), section)
    context = zmq.asyncio.Context()
    known = subscriber_of(context, actor.stats(), partial(with_keys, own_file))
    strangers = [
        subscriber_of(context, actor.stats(), partial(with_keys, other_file)),
        subscriber_of(context, actor.stats()),
    ]
    link = await stand_in.links.get()
    tell(link, in_l1(PROMPT))
    await until(lambda: known.indexer.overlap(PROMPT, 4, None).device == 3, known)

    assert not any(each.indexer.num_events for each in strangers)
    for subscriber in (known, *strangers):
        await subscriber.close()
    await actor.stop()
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ((), "Invalid certificate file: .*/server.key_secret. Expected"),
        (("server.key_secret",), "No public key found in .*/server.key_secret"),
    ],
)
async def test_keys_that_are_missing_are_named(
    stand_in: StandIn, tmp_path: Path, files: tuple[str, ...], problem: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    address = await stand_in.open(tmp_path)
    with pytest.raises(ConfigError, match=f"cache.events.curve: {problem}"):
        await publisher(address, EventsSection(**ANY_FREE, curve=str(tmp_path)))


async def test_a_port_that_is_taken_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    address = await stand_in.open(tmp_path)
    first = await publisher(address, EventsSection(**ANY_FREE))
    port = int(first.stats()["endpoints"][0].rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"127.0.0.1, ports {port} and 0"):
        await publisher(address, EventsSection(port=port, replay_port=0))
    await first.stop()


async def test_without_pyzmq_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kv_publisher.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'raydix\[events\]'"):
        await publisher(f"unix:{tmp_path}/nobody.sock", EventsSection())


async def test_an_engine_tells_of_its_lanes_as_their_scheduler_knows_them() -> None:
    config = load_config(
        {
            "model": {"path": "unused", "max_model_len": 256},
            "parallel": {"dp": 2},
            "cache": {"l1": {"num_pages": 32}, "l2": None, "events": ANY_FREE},
        }
    )
    build = partial(build_sleeping_model, step_s=0.0)
    async with in_process_engine(config, build) as engine:
        stats = (await engine.stats())[ActorKind.EVENTS.value]
        context = zmq.asyncio.Context()
        streams = zip(stats["endpoints"], stats["replay_endpoints"], strict=True)
        subscribers = [KvSubscriber(context, *each) for each in streams]
        prompts = [[number] * 40 for number in range(6)]
        params = {"max_tokens": 4, "temperature": 0.0, "output_kind": "final"}

        async def ask(prompt: list[int]) -> None:
            async for _ in engine.client.generate(prompt, params):
                pass

        await asyncio.gather(*map(ask, prompts))
        scheduler = engine.spawner.latest(ActorKind.SCHEDULER)
        assert scheduler is not None
        core = scheduler.plain._core

        def is_known() -> bool:
            return all(
                subscriber.indexer.overlap(prompt, 16, None).device
                == core._lanes[lane].l1.tree.match(root_key(), pack_tokens(prompt)).num_pages
                for lane, subscriber in enumerate(subscribers)
                for prompt in prompts
            )

        for subscriber in subscribers:
            await until(is_known, subscriber)
        assert sum(
            each.indexer.overlap(p, 16, None).device for each in subscribers for p in prompts
        )
        for subscriber in subscribers:
            await subscriber.close()
        context.destroy(linger=0)
