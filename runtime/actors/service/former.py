"""The earlier version of a service, which makes room for the engines of this one."""

from typing import Any

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.control_client import call_supervisor
from raydix.runtime.actors.engine_record import EngineRecord


class FormerService:
    """Owns: how many engines the earlier version had, and whether it is still there."""

    def __init__(self, name: str, record: EngineRecord, described: dict[str, Any]) -> None:
        """`described`: what it has said of itself."""
        self._name = name
        self._record = record
        self._described = described
        self.num_engines = len(described["engines"])
        self.is_there = True

    @property
    def engines(self) -> list[str]:
        """The names of its engines, those that Ray does not know yet among them."""
        return [each["name"] for each in self._described["engines"]]

    def num_by_node(self) -> dict[str, int]:
        """How many of its engines each node has."""
        nodes = [each["node"] for each in self._described["engines"]] if self.is_there else []
        return {node: nodes.count(node) for node in nodes}

    async def keep(self, num_engines: int) -> None:
        """Let it have no more than so many engines; it ends once it has none.

        It forgets this after a while: whoever wants it to give way says so again and again.
        """
        if not self.is_there:
            return
        try:
            self._described = await call_supervisor(
                self._name, self._record, "give_way", num_engines
            )
        except EngineDead:
            self.is_there = False
