"""What all nodes of a simulation share: time, chance, processes and links."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raydix.ids import ConnectionId
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.simulator.links import Link
from raydix.runtime.foresight.simulator.processes import Processes
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile, draw_factor
from raydix.runtime.messages.arrays import Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a simulation is run."""

    seed: int = 0
    tokens_per_simulated: int = 1
    """The tokens of answers for which one is simulated, which takes as long as all of them."""
    check_interval: int = 0
    """Every so many events each core proves its invariants; 0: never."""


class World:
    """Owns: the virtual clock, what times are drawn from, and the numbers of links."""

    def __init__(self, profile: Profile, rules: Rules) -> None:
        self.profile, self.rules = profile, rules
        self.clock = Clock(rules.seed)
        self.random = self.clock.random
        self.processes = Processes(self.clock)
        self._num_links = 0

    @property
    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self.clock.now_s

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` once `delay_s` has passed."""
        self.clock.after(delay_s, action)

    def new_link(self) -> Link:
        """A link that somebody has dialled."""
        self._num_links += 1
        return Link(self.clock, self.draw_link_s, ConnectionId(self._num_links))

    def draw_link_s(self) -> float:
        """How long a message is on its way: as long as half the way, as its turn is the rest."""
        return self.profile.link_s / 2

    def draw_turn_s(self) -> float:
        """How long what has come waits until a core takes it."""
        return self.profile.link_s / 2

    def draw_size(self, num_waiting: int) -> int:
        """How many of the events that wait a core hears before it decides: all."""
        return num_waiting

    def draw_copy_s(self, times: CopyTimes, num_bytes: float) -> float:
        """How long a copy takes."""
        return times.seconds(num_bytes) * draw_factor(times.spread, self.random)

    def draw_restart_s(self, mean_s: float) -> float:
        """How long somebody who was killed is away."""
        return mean_s * self.random.uniform(0.8, 1.2)


class CheckTurns:
    """Owns: how many events a core has taken since it last proved its invariants."""

    def __init__(self, rules: Rules) -> None:
        self._interval = rules.check_interval
        self._num_events = 0

    def is_due(self, num_heard: int) -> bool:
        """The core has heard so many more events: is it to prove its invariants?"""
        self._num_events += num_heard
        return self._interval > 0 and self._num_events % self._interval < num_heard


def tokens_of(seeds: Int64Array, positions: Int32Array, vocab_size: int) -> Int32Array:
    """The tokens that requests of these seeds have at these places of their outputs.

    Whoever goes on with a request after a death has to bring the same ones.
    """
    mixed = (seeds + 1) * 2_654_435_761 + (positions.astype(np.int64) + 1) * 40_503
    return ((mixed >> 7) % min(vocab_size, 1 << 20)).astype(np.int32)
