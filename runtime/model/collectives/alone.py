"""The collectives of a lane of one rank."""

from torch import Tensor


class Alone:
    """The `Collectives` of a single rank: all parts are wholes, and nothing is done."""

    rank = 0
    size = 1
    is_capturable = True

    def sum(self, part: Tensor) -> Tensor:
        """Return the part, which is the sum."""
        return part

    def gather(self, part_RV: Tensor) -> Tensor:
        """Return the part, which is the whole."""
        return part_RV

    def close(self) -> None:
        """Do nothing: no rank waits for this one."""


ALONE = Alone()
