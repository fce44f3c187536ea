"""A running engine as its clients hold it: what they need to connect, and control calls."""

import logging
import re
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    RpcError,
)

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.bootstrap.log_follower import LogFollower
from raydix.runtime.actors.bootstrap.placement import Placement, release
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.supervision.engine_facts import ClientFacts
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind, actor_name

logger = logging.getLogger(__name__)

_LOST_NODE = (
    NodeDiedError,
    LocalRayletDiedError,
    ActorUnschedulableError,
    RpcError,
)
"""What Ray raises where a node, or all of the cluster, is not there any more."""
_NO_ANSWER = re.compile(r"GCS|connect")
"""What Ray says of a head that does not answer, by an error that has other causes, too."""
_NODE_IS_LOST = re.compile(r"\bnode (?:\S+ )?(?:has )?(?:died|was (?:dead|terminated|lost))", re.I)


def typed_error(error: RayError | RaydixError, who: str) -> RaydixError:
    """What a user sees of a failed Ray call: never a bare RayTaskError."""
    # First: of an error of ours Ray makes one that is both, whose text is a traceback. It has one
    # inside of it if an actor passes on what another one raised.
    if isinstance(error, RayTaskError):
        cause = error.cause
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        return cause if isinstance(cause, RaydixError) else RaydixError(f"{who} failed: {cause!r}")
    if isinstance(error, RaydixError):
        return error
    if isinstance(error, RayActorError | GetTimeoutError):
        return EngineDead(f"{who} is gone: {_brief(error)}")
    is_silent = isinstance(error, RaySystemError) and _NO_ANSWER.search(str(error)) is not None
    if isinstance(error, _LOST_NODE) or is_silent:
        return EngineDead(
            f"{who} cannot be reached: a node of the Ray cluster was lost, or its head "
            f"({_first_line(error)}). ray status shows what is left; start what is missing again, "
            "and then this."
        )
    return RaydixError(f"{who}: {error}")


def _brief(error: RayError) -> str:
    """The error's text without the paragraph of guesses that Ray adds when a process has died."""
    if not isinstance(error, RayActorError) or error.actor_init_failed:
        return str(error)
    if _NODE_IS_LOST.search(str(error)) is not None:
        return "the node of the Ray cluster where it ran was lost; start it again on another one"
    exit_type = re.search(r"Worker exit type: (\w+)", str(error))
    return "its process ended" if exit_type is None else f"its process ended, {exit_type[1]}"


def _first_line(error: RayError) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def find_supervisor(engine: str) -> Any:
    """The Ray handle of an engine's Supervisor. Raises EngineDead if this cluster has none."""
    try:
        return ray.get_actor(actor_name(engine, ActorKind.SUPERVISOR), namespace=NAMESPACE)
    except ValueError as error:
        raise EngineDead(f"this Ray cluster runs no engine named {engine}") from error


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """What Ray holds for an engine that this process has started; it ends with the engine."""

    supervisor: Any
    """Its Ray handle, without which Ray would end the actor."""
    placement: Placement
    cluster: PrivateCluster | None
    log: LogFollower

    def end(self) -> None:
        """Give everything back. Raises RayError if Ray does not answer."""
        self.log.finish()
        # A private cluster takes actors and the placement group with it.
        if self.cluster is not None:
            self.cluster.stop()
            return
        try:
            ray.kill(self.supervisor)
        finally:
            release(self.placement)


class EngineHandle:
    """One running engine; control calls go to its Supervisor, which passes them on.

    Works on any event loop, and on several: each call has a link of its own.
    """

    def __init__(
        self, facts: ClientFacts, record: EngineRecord, own: OwnEngine | None = None
    ) -> None:
        """`own`: what was made for this engine, if this process has started it."""
        self.name = facts.name
        self.listens_at = facts.listens_at
        self.model_path = facts.model_path
        self.facts = facts
        self.record = record
        self._own = own

    async def call(self, method: str, *arguments: Any) -> Any:
        """Make a control call of the Supervisor, such as `stats` or `flush`. Raises EngineDead.

        Arguments and result are plain values: tuples arrive as lists.
        """
        return await call_supervisor(self.name, self.record, method, *arguments)

    async def wait_ended(self) -> None:
        """Wait until the engine ends. Raises EngineDead that says why.

        Raises EngineAway if it cannot be reached any more: of its end that says nothing.
        """
        await self.call("wait_ended")

    async def shutdown(self) -> None:
        """Stop the engine; nothing happens if it is gone. Requests and writes to L3 drain first.

        May be called twice, also at the same time.
        """
        own, self._own = self._own, None
        try:
            await self.call("shutdown")
        except EngineDead:
            # Somebody else has stopped it, or a signal to the whole group of a private cluster.
            logger.info("engine %s has ended already, or is out of reach", self.name)
        finally:
            if own is not None:
                own.end()

    def release(self) -> None:
        """End the engine, drained or not, if this process has started it, with what it reserved.

        Blocks, and raises RayError if Ray does not answer. May be called twice.
        """
        own, self._own = self._own, None
        if own is not None:
            own.end()
