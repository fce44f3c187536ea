"""The phases between an engine that is awake and one that sleeps."""

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """How much an engine does; the value is the word for people and for figures."""

    AWAKE = "awake"
    DRAINING = "falling asleep: requests end"
    PARKING = "falling asleep: requests are parked"
    BACKING_UP = "falling asleep: L1 is copied to L2"
    GIVING_BACK = "falling asleep: memory is given back"
    ASLEEP = "asleep"
    WAKING = "waking"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOutcome:
    """What has come of an order to sleep or to wake."""

    found: Phase
    """The phase in which the order found the engine."""
    reached: Phase
    is_closing: bool
    """Whether the engine is about to stop, for which it is awake."""
