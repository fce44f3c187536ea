"""What Ray's head is asked for, beside an event loop.

A head that does not answer for a while, or is started again, keeps each such call waiting. An actor
that waited with it on its loop would meanwhile answer nobody, and seem lost itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from raydix.runtime.actors.bootstrap.engine_handle import typed_error
from raydix.runtime.actors.threads import on_thread

logger = logging.getLogger(__name__)

_NAME_RELEASE_S = 5.0
_NAME_RETRY_S = 0.05
T = TypeVar("T")


def once_name_is_free(make: Callable[[], T], is_held: Callable[[], bool] = lambda: False) -> T:
    """What `make` returns, once Ray has freed the name of an actor that has ended.

    We may learn of that end a moment sooner than Ray. Blocks. Raises ValueError if the name stays
    taken, at once if `is_held` says that somebody has it.
    """
    give_up_s = time.monotonic() + _NAME_RELEASE_S
    while True:
        try:
            return make()
        except ValueError:
            if time.monotonic() > give_up_s or is_held():
                raise
            time.sleep(_NAME_RETRY_S)


async def make_actor(cls: type, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """The Ray handle of a new actor, whose name is among the options. Raises RaydixError.

    One that has come to be after this was cancelled is killed: nobody knows of it.
    """

    name = options["name"]

    def make() -> Any:
        return ray.remote(cls).options(**options).remote(**arguments)

    making = on_thread(f"make-{name}", once_name_is_free, make)
    try:
        return await asyncio.shield(asyncio.wrap_future(making))
    except asyncio.CancelledError:
        making.add_done_callback(lambda made: _kill_made(made, name))
        raise
    except RayError as error:
        raise typed_error(error, name) from error


async def find_actor(name: str, namespace: str) -> Any:
    """The Ray handle of an actor. Raises ValueError if there is none, or RayError."""
    return await asyncio.wrap_future(on_thread(f"find-{name}", ray.get_actor, name, namespace))


def kill_actor(handle: Any, name: str, else_ends: str = "it ends with its parent") -> None:
    """Have Ray kill an actor, which is not waited for.

    `else_ends`: what ends it if Ray does not, which is logged with what Ray raises.
    """
    on_thread(f"kill-{name}", _kill, handle, name, else_ends)


def _kill_made(made: "Future[Any]", name: str) -> None:
    if made.exception() is None:
        kill_actor(made.result(), name)


def _kill(handle: Any, name: str, else_ends: str) -> None:
    try:
        ray.kill(handle)
    except Exception as error:  # noqa: BLE001  whatever Ray raises where its head is lost
        logger.warning("Ray does not kill %s: %s; %s", name, error, else_ends)
