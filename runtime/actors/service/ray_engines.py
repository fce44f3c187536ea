"""The engines of a Ray cluster, which its named actors tell."""

import ray
from ray.exceptions import RayError

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.cluster import find_cluster, is_to_be_private
from raydix.runtime.actors.bootstrap.engine_handle import typed_error
from raydix.runtime.actors.service.names import number_in
from raydix.runtime.actors.supervision.spawn import NAMESPACE, ActorKind

_FIRST = f"{NAMESPACE}:"
_LAST = f":{ActorKind.SUPERVISOR}"


def engines_of(service: str, address: str | None = None) -> list[str]:
    """The names of a service's engines that live in the cluster, those that start among them.

    In the order of their numbers. Raises EngineDead if the cluster cannot be asked.
    """
    if is_to_be_private(address):
        raise EngineDead(
            f"no Ray cluster is named where service {service} could run. Name it by its HOST:PORT "
            "(--address, or cluster=... in Python), or run this as a job of it."
        )
    find_cluster(address, service)
    try:
        actors = ray.util.list_named_actors(all_namespaces=True)
    except RayError as error:
        raise typed_error(error, f"service {service}") from error
    names = [
        each["name"][len(_FIRST) : -len(_LAST)]
        for each in actors
        if each["namespace"] == NAMESPACE and each["name"].endswith(_LAST)
    ]
    numbers = {name: number_in(service, name) for name in names}
    own = {name: number for name, number in numbers.items() if number is not None}
    return sorted(own, key=own.__getitem__)
