"""An engine as a handle knows it: by its name, and where that was found last."""

from typing import Any

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.launch import EngineHandle
from raydix.runtime.api.engine_place import EnginePlace


class FoundEngine:
    """Owns: which engine has the name now, as far as it was found."""

    def __init__(self, place: EnginePlace) -> None:
        self.place = place
        self.is_own = False
        """Whether this process has started it."""
        self._failure: RaydixError | None = None
        self._told: str | None = None
        """What the log says of it, where it is one of several."""
        self._handle: EngineHandle | None = None

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.place.name

    @property
    def is_over(self) -> bool:
        """Whether this process has started it, and stopped it."""
        return self.is_own and self._handle is None

    @property
    def failure(self) -> RaydixError | None:
        """Why it has ended, if it was found to have when it was asked last."""
        return self._failure

    def note(self, failure: RaydixError | None) -> None:
        """Note why it has ended, or that it has not."""
        self._failure = failure

    def is_news(self, text: str) -> bool:
        """Whether the log does not say so already, as it will from now on."""
        is_new, self._told = text != self._told, text
        return is_new

    def adopt(self, handle: EngineHandle) -> None:
        """Be the engine that this process has started."""
        self._handle = handle
        self.is_own = True

    async def handle(self) -> EngineHandle:
        """The engine. Raises EngineDead if it was not found and there is none."""
        if self._handle is None:
            self._handle = await self.place.find()
        return self._handle

    async def found_again(self) -> EngineHandle:
        """The engine after a lost link. Raises EngineDead at once if it has ended."""
        if self.is_own:
            await (await self.handle()).call("client_facts")
        else:
            self._handle = None
        return await self.handle()

    def forget(self) -> None:
        """Find the engine anew next time, by its name, unless this process has started it."""
        if not self.is_own:
            self._handle = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Make a control call to whatever engine has the name now. Raises EngineDead."""
        try:
            return await (await self.handle()).call(method, *arguments)
        except EngineDead:
            self.forget()
            raise

    async def shutdown(self) -> None:
        """Stop it, whoever started it; nothing if it was stopped by this already."""
        if self.is_over:
            return
        await (await self.handle()).shutdown()
        self._handle = None
