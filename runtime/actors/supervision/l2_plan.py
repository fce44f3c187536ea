"""What an engine wants its node's L2 to be, and how long an L2 stays. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydix.ids import SchedulerName
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.pulls.pull_settings import PullSetup
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.values import Section
from raydix.runtime.storage.namespace import Namespace

_SIZE = "cache.l2.bytes_per_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Plan:
    """What an engine wants its node's L2 to be."""

    model_path: str
    namespace: Namespace
    layout: KvLayout
    size_bytes: int
    is_size_fixed: bool
    """Whether the size was configured; else it is in proportion to an L1, and any will do."""
    floor_bytes: int | None
    """The least that it is made with, where others have the rest; None: all of `size_bytes`."""
    total_bytes: int | None
    """The most that all L2s of the node take together; None: any number."""
    settings: HostSettings
    l3: L3Section | None
    """The backend of storage when it opens; it may be changed later."""
    folder: str | None
    """The folder in which the arena needs a name."""
    pull: PullSetup | None
    """How pages are exchanged with other nodes; None: they are not."""

    def differences(self, found: "L2Plan") -> Sequence[str]:
        """What an L2 that was opened by another engine's plan would have to be instead, by key."""
        wanted, has = self._compared(), found._compared()
        if not self.is_size_fixed:
            wanted[_SIZE] = has[_SIZE]
        return [
            f"{key} is {_shown(key, value)}, and there {_shown(key, has[key])}"
            for key, value in wanted.items()
            if value != has[key]
        ]

    def _compared(self) -> dict[str, Any]:
        return {
            _SIZE: self.size_bytes,
            "cache.l2.floor_bytes": self.floor_bytes,
            "cache.l2.total_bytes_per_node": self.total_bytes,
            "cache.l2.eviction": self.settings.eviction,
            "cache.l2.pull": None if self.pull is None else self.pull.section,
            "cache.retention.max_kept_fraction": self.settings.max_kept_fraction,
            "cache.prefetch.min_tokens": self.settings.storage.min_tokens,
            "cache.events.max_l3_pages": self.settings.storage.max_told_objects,
            "cache.l3": self.l3,
        }


def _shown(key: str, value: Any) -> str:
    if isinstance(value, int) and key.startswith("cache.l2."):
        return format_bytes(value)
    if isinstance(value, Section):
        return str(value.model_dump(mode="json", exclude_unset=True))
    return "null" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """An engine that uses an L2: one life of it, as another one may have its name later."""

    engine: str
    process: ProcessId
    """Its Supervisor: with it, and all processes that map the arena, it has ended."""
    scheduler_address: str
    secret: bytes = field(repr=False)
    keep_s: float
    """How long L2 stays for its sake once it has ended."""

    @property
    def name(self) -> SchedulerName:
        """The name of its Scheduler, across restarts, which no other engine ever has."""
        return SchedulerName(f"{self.engine} {self.process.pid}.{self.process.started}")


class L2Stay:
    """Owns: which engines use an L2, and until when it stays without any."""

    def __init__(self) -> None:
        """Start with nobody, and no end."""
        self._guests: dict[SchedulerName, Guest] = {}
        self._kept_until_s: float | None = None

    @property
    def guests(self) -> Collection[Guest]:
        """The engines that use it, in the order in which they came."""
        return self._guests.values()

    @property
    def ends_at_s(self) -> float | None:
        """When it ends; None while it is used, and before anybody has used it."""
        return None if self._guests else self._kept_until_s

    def come(self, guest: Guest) -> None:
        """An engine uses the L2; the same one may come again."""
        self._guests[guest.name] = guest

    def go(self, name: SchedulerName, now_s: float, *, holds_pages: bool) -> None:
        """An engine has ended. What it asked for counts, unless there is nothing to keep.

        One that is not known, as it came to the HostMemory before this one, asks for nothing.
        """
        guest = self._guests.pop(name, None)
        keep_s = guest.keep_s if guest is not None and holds_pages else 0.0
        self._kept_until_s = max(self._kept_until_s or 0.0, now_s + keep_s)
