"""What all nodes and engines of a simulation share: time, chance, processes and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from raydix.ids import ConnectionId
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.simulator.links import Link
from raydix.runtime.foresight.simulator.processes import Processes
from tests.simulation.faults import Faults

if TYPE_CHECKING:
    from tests.simulation.node import Node


class World:
    """Owns: the virtual clock, how the world misbehaves, and what was done to its inhabitants."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.faults = faults
        self.clock = Clock(seed)
        self.random = self.clock.random
        self._sizes = Random(seed)
        self.processes = Processes(self.clock)
        self.num_faults: Counter[str] = Counter()
        """What was done to actors, links and clients, by kind."""
        self.nodes: list[Node] = []
        """All nodes, each of which pulls from the others."""
        self.check_interval = 5
        """Every so many events the cores prove their invariants."""
        self._num_events = self._num_links = 0

    @property
    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self.clock.now_s

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` once `delay_s` has passed."""
        self.clock.after(delay_s, action)

    def is_check_due(self, num_heard: int) -> bool:
        """A core has heard so many more events: is it to prove its invariants?"""
        self._num_events += num_heard
        return self._num_events % self.check_interval < num_heard

    def new_link(self) -> Link:
        """A link that somebody has dialled."""
        self._num_links += 1
        return Link(self.clock, self.draw_link_s, ConnectionId(self._num_links))

    def draw_link_s(self) -> float:
        """How long a message is on its way."""
        return self.clock.draw(self.faults.link_delay_s)

    def draw_turn_s(self) -> float:
        """How long what has come waits until a core takes it."""
        return self.clock.draw(self.faults.turn_s)

    def draw_size(self, num_waiting: int) -> int:
        """How many of the events that wait a core hears before it decides."""
        if num_waiting == 1 or self._sizes.random() >= self.faults.together_fraction:
            return 1
        return self._sizes.randint(2, num_waiting)

    def draw_pull_s(self, num_pages: int) -> float:
        """How long pages take from another node."""
        return self.clock.draw(self.faults.pull_s) * (1 + num_pages) + self.faults.pull_lag_s

    def draw_redial_s(self) -> float:
        """How long somebody who has lost a link waits before dialling anew."""
        return 0.0 if self.random.random() < 0.5 else self.clock.draw(self.faults.reconnect_s)
