"""The ports that a configuration names: no two of them may be the same."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from raydix.runtime.config.sections import CacheSection, ParallelSection, RaySection

_ANY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class NamedPorts:
    """Ports in a row, and which setting asks for them."""

    setting: str
    host: str | None
    """Where they are; None: not known, so perhaps at any address."""
    first: int
    count: int = 1

    def overlaps(self, other: "NamedPorts") -> bool:
        """Whether a port of both is asked for at addresses that may be the same."""
        hosts = {self.host, other.host}
        may_meet = len(hosts) == 1 or None in hosts or not hosts.isdisjoint(_ANY_HOST)
        ends = self.first + self.count, other.first + other.count
        return may_meet and self.first < ends[1] and other.first < ends[0]

    def __str__(self) -> str:
        last = self.first + self.count - 1
        ports = f"port {self.first}" if self.count == 1 else f"ports {self.first} to {last}"
        return f"{self.setting} takes {ports}"


def ports_of(
    cache: CacheSection, parallel: ParallelSection, ray: RaySection
) -> Iterator[NamedPorts]:
    """The ports that a configuration itself names, without those that are free to be chosen."""
    events, l2 = cache.events, cache.l2
    if events is not None:
        for name, port in (("port", events.port), ("replay_port", events.replay_port)):
            if port:
                yield NamedPorts(f"cache.events.{name}", events.host, port, parallel.dp)

    if l2 is not None and l2.pull is not None and l2.pull.port is not None:
        # Questions come by the first, and pages by the second.
        yield NamedPorts("cache.l2.pull.port", l2.pull.host, l2.pull.port, 2)
    if ray.metrics_port is not None:
        yield NamedPorts("ray.metrics_port", None, ray.metrics_port)
    if ray.dashboard_port is not None:
        yield NamedPorts("ray.dashboard_port", "127.0.0.1", ray.dashboard_port)


def find_conflict(named: Iterable[NamedPorts]) -> str | None:
    """Which two settings ask for one port; None if none do."""
    for one, other in combinations(named, 2):
        if one.overlaps(other):
            return (
                f"{one}, and {other}; expected ports that differ. Choose another for one of them."
            )
    return None
