"""How long pieces of work take, as whoever does them has learned it."""

from typing import NamedTuple


class Line(NamedTuple):
    """The time of a piece of work: a fixed part, and a part for each unit of its amount."""

    fixed_s: float
    """Seconds that a piece of work takes whatever its amount is."""
    unit_s: float
    """Seconds that each unit of the amount adds."""

    def predict_s(self, amount: float) -> float:
        """Seconds that a piece of so many units takes."""
        return self.fixed_s + amount * self.unit_s
