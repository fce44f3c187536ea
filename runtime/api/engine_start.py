"""Starting an engine for a handle, so that a start that is cancelled leaves none."""

import asyncio
import contextlib
import logging
from concurrent.futures import Future

from raydix.errors import RaydixError
from raydix.runtime.actors.bootstrap.launch import EngineHandle, start_engine
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.quick_check import require_checkpoint
from raydix.runtime.phases import phase

logger = logging.getLogger(__name__)

UNDO_S = 1.0
"""The time for a start that is called off to give everything back."""


def begin_tokenizer(model: ModelSection) -> "Future[Tokenizer | None]":
    """Load a checkpoint's tokenizer on a thread, while its engine starts.

    Raises CheckpointError for what is no checkpoint's folder, or that of a model which is not
    served or whose weights are incomplete, before seconds are spent on Ray.
    """
    require_checkpoint(model)
    return on_thread("tokenizer", _load_tokenizer, model.path)


async def start_or_undo(
    config: EngineConfig,
    name: str,
    address: str | None,
    supervision: Supervision,
    *,
    gateway: GatewaySettings | None,
    tokenizer: "Future[Tokenizer | None]",
) -> EngineHandle:
    """Start an engine on a thread, as that blocks; a tokenizer that cannot be read ends the start.

    A cancelled start is called off, and what it had made is undone before this returns.
    """
    control = StartControl(precondition=tokenizer)
    starting = asyncio.wrap_future(
        on_thread(
            "start",
            start_engine,
            config,
            name,
            address,
            supervision,
            gateway=gateway,
            control=control,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        control.call_off()
        with contextlib.suppress(RaydixError):
            await (await starting).shutdown()
        raise


def _load_tokenizer(folder: str) -> Tokenizer | None:
    with phase(logger, "tokenizer read"):
        tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        logger.warning(
            "the checkpoint %s has no tokenizer: prompts are token ids alone, and so are answers; "
            "text and chats are refused",
            folder,
        )
    return tokenizer
