"""The earlier version of a service, which makes room for the engines of this one."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import EngineRecord, find_record
from raydix.runtime.actors.service.roles import RoleCounts
from raydix.runtime.config.policies import EngineRole

logger = logging.getLogger(__name__)


class FormerService:
    """Owns: which engines the earlier version had, and whether it is still there."""

    def __init__(self, name: str, record: EngineRecord, described: dict[str, Any]) -> None:
        """`described`: what it has said of itself."""
        self._name = name
        self._record = record
        self._described = described
        self.roles: RoleCounts = Counter(EngineRole(each["role"]) for each in described["engines"])
        """How many engines of each role it had at first."""
        self.is_there = True

    @property
    def engines(self) -> list[str]:
        """The names of its engines, those that Ray does not know yet among them."""
        return [each["name"] for each in self._described["engines"]]

    def roles_by_node(self) -> Mapping[str, Sequence[EngineRole]]:
        """The roles of its engines that each node has."""
        found: dict[str, list[EngineRole]] = {}
        for each in self._described["engines"] if self.is_there else ():
            found.setdefault(each["node"], []).append(EngineRole(each["role"]))
        return found

    async def keep(self, roles: RoleCounts) -> None:
        """Let it have no more engines than these; it ends once it has none.

        It forgets this after a while: whoever wants it to give way says so again and again.
        """
        if not self.is_there:
            return
        try:
            self._described = await call_supervisor(self._name, self._record, "give_way", {**roles})
        except EngineDead as error:
            # One that was too busy to answer has its name still, and would go on beside this one.
            self.is_there = find_record(self._name) == self._record
            if self.is_there:
                logger.warning("the earlier version of %s does not answer: %s", self._name, error)
