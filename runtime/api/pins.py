"""Pins: prompts whose pages stay in L2 for a while, whatever is used meanwhile."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from raydix.errors import BadParameter
from raydix.ids import PinId, TenantId
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.messages.client import UnpinPrompt


class _Engine(Protocol):
    """The part of a handle on engines that is needed here."""

    async def connected(self) -> EngineClient:
        """The open connection."""

    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """Figures of every actor, by the engine's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPrompt:
    """What came of a pin."""

    pin_id: str
    """The name by which it is released."""
    num_pinned_tokens: int
    """The leading tokens of the prompt that are held; 0: none, and there is no pin."""
    tokens_by_source: dict[str, int]
    """Where the prompt's tokens were, as of a prefetch; what L1 alone had is not told."""


class Pins:
    """The pins of the engines of a handle."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def add(
        self, prompt: Prompt, *, keep_s: float, cache_salt: str | None = None
    ) -> PinnedPrompt:
        """Bring to L2 what L3 has of a prompt, and hold there what is there of it then.

        It is held for `keep_s`, or cache.retention.max_keep_s if that is shorter. All pins together
        hold at most cache.retention.max_kept_fraction of L2, and a quarter of it; beyond that the
        tenant that has most gives up its oldest. Nothing is computed. Raises what
        `AsyncLLM.prefetch` does.
        """
        return await pin_prompt(await self._engine.connected(), prompt, keep_s, cache_salt)

    async def release(self, pin_id: str) -> bool:
        """Hold a pinned prompt no more; False: there is no such pin. Raises EngineDead."""
        for pin in await self.shown():
            if pin["pin_id"] == pin_id:
                (await self._engine.connected()).tell_all(unpinning(pin))
                return True
        return False

    async def shown(self) -> list[dict[str, Any]]:
        """All pins: `pin_id`, `tenant`, `pinned_tokens`, `bytes`, `left_s`, ..."""
        return pins_of(await self._engine.stats_by_engine())


def pins_of(stats: Mapping[str, dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The pins that engines show, by `stats_by_engine`; one that is away shows none.

    Engines that share an L2 show the same ones.
    """
    hosts = [(figures or {}).get("host") or {} for figures in stats.values()]
    return list({pin["pin_id"]: pin for host in hosts for pin in host.get("l2_pins", ())}.values())


async def pin_prompt(
    client: EngineClient, prompt: Prompt, keep_s: float, cache_salt: str | None = None
) -> PinnedPrompt:
    """Pin a prompt as `Pins.add` does."""
    is_number = isinstance(keep_s, Real) and not isinstance(keep_s, bool)
    if not (is_number and 0 < keep_s <= sys.float_info.max):
        raise BadParameter("keep_s", f"is {keep_s!r:.80}; expected more than 0 seconds.")
    delta = await client.bring(prompt, cache_salt, float(keep_s))
    return PinnedPrompt(
        pin_id=delta.request_id,
        num_pinned_tokens=delta.num_pinned_tokens or 0,
        tokens_by_source=delta.cached_tokens_by_source or {},
    )


def unpinning(shown: Mapping[str, Any]) -> UnpinPrompt:
    """The message that releases a pin, as it is shown."""
    return UnpinPrompt(pin_id=PinId(shown["pin_id"]), tenant=TenantId(shown["tenant_id"]))
