"""The models behind one address, each known to clients by its name."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from raydix.errors import BadParameter, EngineAsleep, EngineDead
from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.errors import RequestRefused, failure
from raydix.runtime.server.served import Served

T = TypeVar("T")


class ServedModels:
    """Knows which engines serve the model of a name."""

    def __init__(
        self, engines: Mapping[str, ServedEngine], wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`engines`: by the names of their models."""
        started_at = int(wall_clock())
        self._by_name = {
            name: Served(engine, name, started_at, wall_clock) for name, engine in engines.items()
        }

    @property
    def all(self) -> Sequence[Served]:
        """All of them, in the order in which they were named."""
        return tuple(self._by_name.values())

    def of(self, asked: str | None) -> Served:
        """The model that a request asks for; where there is but one, it need not be named.

        Raises RequestRefused if there is none of this name, BadParameter if one has to be named.
        """
        if asked is None:
            if len(self._by_name) > 1:
                raise BadParameter("model", f"is missing; expected {self._expected}.")
            return self.all[0]
        served = self._by_name.get(asked)
        if served is None:
            text = f"The model {asked!r} is not served here; expected {self._expected}."
            raise RequestRefused(
                failure(404, text, "invalid_request_error", param="model", code="model_not_found")
            )
        return served

    async def ask_all(self, ask: Callable[[Served], Awaitable[T]]) -> dict[str, T | None]:
        """What each model answers, by its name; None for one whose engines are away or asleep.

        Raises EngineDead or EngineAsleep if that is so for all, and what any of them raises else.
        """
        answers = await asyncio.gather(*map(ask, self.all), return_exceptions=True)
        errors = [each for each in answers if isinstance(each, BaseException)]
        for error in errors:
            if len(errors) == len(answers) or not isinstance(error, EngineDead | EngineAsleep):
                raise error
        return {
            name: None if isinstance(answer, BaseException) else answer
            for name, answer in zip(self._by_name, answers, strict=True)
        }

    @property
    def _expected(self) -> str:
        names = ", ".join(map(repr, self._by_name))
        return names if len(self._by_name) == 1 else f"one of {names}"
