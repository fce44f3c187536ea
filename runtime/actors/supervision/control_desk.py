"""Where an engine answers control calls of clients without Ray."""

import os
from collections.abc import Callable, Mapping

from raydix.runtime.actors.engine_record import EngineName, EngineRecord
from raydix.runtime.actors.links.link import Link
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.supervision.control_calls import Call, ControlCalls
from raydix.runtime.messages.hello import Hello, Role


class ControlDesk:
    """Owns: an engine's name on this host, and the socket on which it answers calls."""

    def __init__(
        self,
        name: str,
        record: EngineRecord,
        calls: Mapping[str, Call],
        on_shut_down: Callable[[], None],
    ) -> None:
        """`on_shut_down` is called when a call that ends the engine has been answered."""
        self._name = name
        self._record = record
        self._calls = ControlCalls(calls, on_shut_down)
        self._engine_name: EngineName | None = None
        self._listener: Listener | None = None

    async def open(self) -> None:
        """Take the name, answer calls and be found. Raises EngineDead if the name is taken."""
        self._engine_name = EngineName(self._name)
        own = Hello(
            role=Role.SUPERVISOR,
            name=self._name,
            incarnation=1,
            pid=os.getpid(),
        )
        self._listener = await listen(
            self._record.control_address, own, self._record.secret, self._calls.serve
        )
        self._engine_name.publish(self._record)

    def withdraw(self) -> None:
        """Be found no more; links stay. May be called twice, and before `open`."""
        if self._engine_name is not None:
            self._engine_name.release()

    async def close(self) -> None:
        """Withdraw, and answer nobody any more."""
        self.withdraw()
        if self._listener is not None:
            await self._listener.close()

    async def serve(self, link: Link) -> None:
        """Answer one call over a link that was opened elsewhere."""
        await self._calls.serve(link)
