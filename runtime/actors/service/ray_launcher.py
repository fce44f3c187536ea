"""Engines of a service on the nodes of a Ray cluster that this process is part of."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import ray
from ray.exceptions import RayError

from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle, typed_error
from raydix.runtime.actors.bootstrap.launch import StartModel, start_engine
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.service.ray_engines import asking_ray, engines_of
from raydix.runtime.actors.supervision.draining import longest_drain_s
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.policies import EngineRole


class RayLauncher:
    """A `Launcher` of engines of one model, each on a node of Ray."""

    def __init__(
        self,
        service: str,
        configs: Mapping[EngineRole, EngineConfig],
        supervision: Supervision,
        checking: "Future[StartModel]",
    ) -> None:
        """`configs`: one for each role, else equal. `checking`: what the model takes."""
        self._service = service
        self._configs = configs
        self._supervision = supervision
        self._checking = checking

    @property
    def drain_s(self) -> float:
        """The longest that an engine which is stopped takes to drain."""
        return longest_drain_s(self._supervision.drain_timeout_s)

    def nodes(self) -> Sequence[str]:
        """The ids of the nodes that Ray takes for living, in their order."""
        return sorted(self.addresses())

    def addresses(self) -> Mapping[str, str]:
        """The addresses of these nodes, by their ids."""
        with asking_ray(self._service):
            living = [node for node in ray.nodes() if node["Alive"]]
        return {node["NodeID"]: node["NodeManagerAddress"] for node in living}

    def engines(self) -> Sequence[str]:
        """The names of all engines of the service in the cluster."""
        return engines_of(self._service)

    def start(self, name: str, node: str, role: EngineRole, control: StartControl) -> EngineHandle:
        """Start an engine on a node, where clients on others reach it by the node's address."""
        try:
            return self._start(name, node, role, control)
        except RayError as error:
            raise typed_error(error, f"engine {name}") from error

    def _start(self, name: str, node: str, role: EngineRole, control: StartControl) -> EngineHandle:
        [found] = [each for each in ray.nodes() if each["NodeID"] == node]
        # Its secret is drawn by the engine and told through Ray, as those of pulls are.
        address = found["NodeManagerAddress"]
        gateway = GatewaySettings(address=TcpAddress(address, 0), secret=None)
        return start_engine(
            self._configs[role],
            name,
            supervision=self._supervision,
            gateway=gateway,
            control=control,
            node=node,
            node_address=address,
            checking=self._checking,
        )
