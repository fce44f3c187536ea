"""One incarnation of an actor in a Ray worker process of this host, as its keeper sees it."""

import asyncio
from typing import Any

from ray.exceptions import RayError

from raydix.runtime.actors.bootstrap.engine_handle import typed_error
from raydix.runtime.actors.bootstrap.head_calls import kill_actor
from raydix.runtime.actors.process import ProcessHandle

_RAY_KILL_S = 0.5


class RayActor:
    """An actor that ends with the engine that keeps it."""

    def __init__(self, handle: Any, name: str, pid: int) -> None:
        self._handle = handle
        self._name = name
        self._process = ProcessHandle(pid)

    @property
    def pid(self) -> int:
        """The id of the process in which Ray runs the actor."""
        return self._process.pid

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method through Ray and wait. Ray's errors become ours."""
        try:
            return await getattr(self._handle, method).remote(*arguments)
        except RayError as error:
            raise typed_error(error, self._name) from error

    async def ping(self) -> None:
        """Return once the actor's event loop has answered Ray."""
        await self._handle.__ray_call__.remote(answer)

    async def wait_ended(self) -> None:
        """Return once the actor's process has ended."""
        await self._process.wait()

    def kill(self) -> None:
        """Kill the process.

        Ray is told first, so that it knows that this is meant; if it does nothing, or cannot be
        told, the kernel kills a moment later.
        """
        asyncio.get_running_loop().call_later(_RAY_KILL_S, self._process.kill)
        kill_actor(self._handle, self._name, "the kernel does")

    def release(self) -> None:
        """Kill the process: nobody else uses it."""
        self.kill()


class SharedRayActor(RayActor):
    """An actor that several engines keep, and that none of them ends by ending."""

    def release(self) -> None:
        """Let the process go on, for others; to this engine it counts as ended."""
        self._process.close()


def answer(_actor: object) -> None:
    return None
