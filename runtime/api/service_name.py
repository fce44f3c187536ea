"""A service as clients name it: by one name, whatever engines it has."""

import asyncio
from dataclasses import dataclass

from raydix.errors import EngineDead
from raydix.runtime.actors.service.ray_engines import engines_of
from raydix.runtime.api.engine_place import EnginePlace


@dataclass(frozen=True, slots=True)
class ServiceName:
    """Stands for all engines that the service of this name has in a Ray cluster."""

    name: str


@dataclass(frozen=True, slots=True)
class ServiceMembers:
    """The engines that a service has in a Ray cluster, which come and go."""

    name: str
    cluster: str | None

    async def find(self) -> list[EnginePlace]:
        """Where they are now. Raises EngineDead or ConfigError if the cluster cannot be asked."""
        return await find_places(self.name, self.cluster)

    def nobody(self, since: str, advice: str) -> EngineDead:
        """The error of whoever needs one while there is none."""
        return EngineDead(
            f"The service {self.name} has no engine {since}, in the Ray cluster that was asked. "
            f"{advice}; raydix status on the host of its raydix serve shows what it does."
        )


async def find_places(service: str, cluster: str | None) -> list[EnginePlace]:
    """Where the engines of a service are at the moment. Raises EngineDead or ConfigError."""
    names = await asyncio.to_thread(engines_of, service, cluster)
    return [EnginePlace(each, cluster=cluster) for each in names]
