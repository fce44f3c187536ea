"""A service as clients name it: by one name, whatever engines it has."""

import asyncio
from dataclasses import dataclass

from raydix.runtime.actors.service.ray_engines import engines_of
from raydix.runtime.api.engine_place import EnginePlace


@dataclass(frozen=True, slots=True)
class ServiceName:
    """Stands for all engines that the service of this name has in a Ray cluster."""

    name: str


async def find_places(service: str, cluster: str | None) -> list[EnginePlace]:
    """Where the engines of a service are at the moment. Raises EngineDead or ConfigError."""
    names = await asyncio.to_thread(engines_of, service, cluster)
    return [EnginePlace(each, cluster=cluster) for each in names]
