"""The engines of a Ray cluster, which its named actors tell."""

import contextlib
from collections.abc import Iterator

import ray
from ray.exceptions import RayError

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.cluster import find_cluster, is_to_be_private
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
    with asking_ray(service):
        actors = ray.util.list_named_actors(all_namespaces=True)
    names = [
        each["name"][len(_FIRST) : -len(_LAST)]
        for each in actors
        if each["namespace"] == NAMESPACE and each["name"].endswith(_LAST)
    ]
    numbers = {name: number_in(service, name) for name in names}
    own = {name: number for name, number in numbers.items() if number is not None}
    return sorted(own, key=own.__getitem__)


@contextlib.contextmanager
def asking_ray(service: str) -> Iterator[None]:
    """Raise EngineDead if Ray does not answer what is asked in this block."""
    try:
        yield
    except RayError as error:
        said = str(error).strip().partition("\n")[0].rstrip(".")
        raise EngineDead(
            f"Ray does not say which nodes and engines there are for service {service} ({said}). "
            "Its head may be lost, or have too much to do: ray status tells. Start what is missing "
            "again; else this is to be tried again."
        ) from error
