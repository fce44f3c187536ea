"""The asynchronous engine handle: start or reach an engine, and stream tokens from it."""

import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from raydix.runtime.actors.bootstrap.remote import gateway_settings
from raydix.runtime.actors.supervision.restarts import DRAIN_S, Supervision
from raydix.runtime.api.engine_connection import EngineConnection
from raydix.runtime.api.engine_place import EnginePlace
from raydix.runtime.api.engine_start import begin_tokenizer, start_or_undo
from raydix.runtime.api.explained import explained
from raydix.runtime.api.model_handle import ModelHandle
from raydix.runtime.api.recording import Recording
from raydix.runtime.api.request_options import check_switch
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.names import check_name
from raydix.runtime.config.paths import require_absolute_l3, resolve_l3


class AsyncLLM(ModelHandle):
    """A handle on one engine, known by its name. Works in plain asyncio and in async Ray actors.

    Make one with `start` or `connect`. It can be pickled: the copy connects by name on its first
    use. After a lost connection requests go on over a new one. It belongs to the event loop on
    which it is used, until that runs no more. At the end of its `async with` an engine that it has
    started is shut down; one that it has reached goes on.
    """

    def __init__(
        self,
        name: str = "raydix",
        address: str | None = None,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
    ) -> None:
        """A handle that connects when first used; the arguments are those of `connect`."""
        self.name = name
        self.place = EnginePlace(name, address, secret_file, cluster)
        super().__init__(EngineConnection([self.place]))
        [self._engine] = self._connection.engines

    @classmethod
    async def start(
        cls,
        source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
        *,
        name: str | None = None,
        address: str | None = None,
        drain_s: float = DRAIN_S,
        listen: str | None = None,
        secret_file: str | Path | None = None,
        **sections: Any,
    ) -> Self:
        """Start an engine and connect to it.

        source: a YAML file, a checkpoint folder, `ORG/NAME` on the Hub, or a dict with the
        configuration; `sections` (`cache={...}`) are laid over it. name: by which others reach it,
        one engine of each user and host; None: a made-up one. address: of the Ray cluster; None:
        the one at hand, else a private one. drain_s: when the engine is shut down, how long
        requests may go on, and then writes to L3; new requests are refused meanwhile. listen:
        `HOST:PORT` for clients on other hosts, who must know the secret, which is found as in
        `connect`. Without one it must be a loopback address, and only this user may connect. The
        engine ends with this process.

        Raises ConfigError, CheckpointError or EngineDead.
        """
        if name is not None:
            check_name(name, "name")
        gateway = gateway_settings(listen, secret_file)
        config = load_config(source, sections)
        name = f"private-{uuid.uuid4().hex[:8]}" if name is None else name
        supervision = Supervision(drain_timeout_s=drain_s)
        # A broken tokenizer is reported before the weights are read, which may take minutes.
        tokenizer = begin_tokenizer(config.model)
        handle = await start_or_undo(
            config, name, address, supervision, gateway=gateway, tokenizer=tokenizer
        )

        engine = cls(name, cluster=address)
        # By the path as given: the engine's own may name a commit. No wait, which may be cancelled.
        engine._connection.tokenizers.add(config.model.path, tokenizer.result())
        engine._engine.adopt(handle)
        # The caller has no handle yet to shut it down, so a failure from here on ends the engine.
        try:
            await engine.connected()
        except BaseException:
            await handle.shutdown()
            raise
        return engine

    @classmethod
    async def connect(
        cls,
        name: str = "raydix",
        address: str | None = None,
        *,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
    ) -> Self:
        """Reach a running engine. Raises EngineDead if there is none of this name.

        address: `HOST:PORT` where the engine listens, on whatever host; nothing of Ray is needed.
        None: it is on this host. secret_file: a file of mode 0600 with the secret that an engine
        elsewhere asks for; None: it is in RAYDIX_SECRET, or in the file that RAYDIX_SECRET_FILE
        names. TLS is used where RAY_USE_TLS is set, with Ray's certificates. cluster: find the
        engine through the Ray cluster of this address, which must have it on this host.
        """
        engine = cls(name, address, secret_file, cluster)
        await engine.connected()
        return engine

    async def stats(self) -> dict[str, Any]:
        """Counters and gauges of the engine."""
        stats: dict[str, Any] = await self._engine.call("stats")
        return stats

    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """`stats` of each engine of this handle, by its name; None for one that is away."""
        return {self.name: await self.stats()}

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop all cached pages of L1 and L2 that no request uses; what was dropped.

        l3: drop this engine's stored objects, too.
        """
        flushed: dict[str, Any] = await self._engine.call("flush", check_switch("l3", l3))
        return flushed

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use another L3 backend from now on, while requests run.

        section: as `cache.l3` of a configuration; a relative path starts at this process's working
        directory, and is refused where the engine may be on another host. The former backend is
        left once its operations have ended. Returns the names of both backends.

        Raises ConfigError if the section is wrong or its backend cannot work, EngineDead if it
        cannot be put to use in time; then the engine goes on with what it had.
        """
        if self.place.address is not None:
            require_absolute_l3(section)
        own = resolve_l3(section, Path.cwd())
        names: dict[str, Any] = await self._engine.call("attach_storage", own)
        return names

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3, while requests run; what it holds stays there.

        Returns the name of the backend that was in use, or None.
        """
        names: dict[str, Any] = await self._engine.call("detach_storage")
        return names

    async def sleep(self, weights: bool = False) -> dict[str, Any]:
        """Give the memory of the GPUs' KV pages back, and with `weights` that of the weights too.

        Requests that have begun end first, or after `scheduler.max_drain_s` pause until the wake,
        and L2 gets what it lacks of L1. Those that come until `wake` wait, or raise EngineAsleep
        after `scheduler.max_asleep_wait_s`. Returns the bytes
        that the ranks held (`held_bytes`) and hold (`left_bytes`), the pages that L2 had no
        room for (`lost_pages`), and what this has `found`, a word of `phase`. Raises CalledOff if
        somebody wakes the engine meanwhile, or stops it.
        """
        slept: dict[str, Any] = await self._engine.call(
            "fall_asleep", check_switch("weights", weights)
        )
        return slept

    async def wake(self) -> dict[str, Any]:
        """Take the GPUs' memory again, and go on with requests.

        Returns how long it took (`seconds`), and what this has `found`, a word of `phase`: of many
        who wake an engine at once, one has found it asleep. Raises EngineAsleep if there is no
        room: then the engine sleeps on.
        """
        woken: dict[str, Any] = await self._engine.call("wake")
        return woken

    async def phase(self) -> str | None:
        """`awake`, `asleep`, or how far the engine is between them; None: nobody knows yet."""
        phase: str | None = await self._engine.call("phase")
        return phase

    async def phase_by_engine(self) -> dict[str, str | None]:
        """`phase` of each engine of this handle, by its name."""
        return {self.name: await self.phase()}

    async def explain(self, request_id: str) -> dict[str, Any]:
        """Tell where each range of a request's prompt came from, or why it was computed.

        request_id: of one of the engine's last 1,024 requests, or the id of an HTTP answer. Raises
        UnknownRequest for any other.
        """
        return await explained(partial(self._engine.call, "explain"), str(request_id))

    async def begin_recording(self, block_tokens: int | None = None) -> Recording:
        """Record what the engine is asked from now on, in salted hashes, by all its clients.

        block_tokens: the tokens of a block, a multiple of `cache.page_size`; None: those of a page.
        Raises BadRequest, also if somebody records it already.
        """
        return Recording(
            self._engine.call, await self._engine.call("begin_recording", block_tokens)
        )

    async def prefetch_state(self, prefetch_id: str) -> dict[str, Any] | None:
        """What the engine knows of a prefetch; see `Prefetches.state`."""
        state: dict[str, Any] | None = await self._engine.call("prefetch_state", str(prefetch_id))
        return state

    async def listens_at(self) -> str | None:
        """`HOST:PORT` where the engine listens for clients on other hosts; None: it does not."""
        return (await self._engine.handle()).listens_at

    async def wait_ended(self) -> None:
        """Wait until the engine gives up, is shut down or is killed.

        Raises EngineDead: why; EngineStopped if it was shut down.
        """
        await (await self._engine.handle()).wait_ended()

    async def shutdown(self) -> None:
        """Stop the engine, whoever started it. Open streams of this handle raise Cancelled.

        Those of others may end first, for as long as the engine was started to drain. May be called
        twice, also at the same time.
        """
        await self._connection.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._engine.is_own:
            await self.shutdown()
        else:
            await self.disconnect()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        place = self.place
        return type(self), (place.name, place.address, place.secret_file, place.cluster)
