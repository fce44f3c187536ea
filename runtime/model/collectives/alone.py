"""The collectives of a lane of one rank."""

from torch import Tensor


class Alone:
    """Is `Collectives`: all parts are wholes, and nothing is done."""

    rank = 0
    size = 1
    is_capturable = True

    def sum(self, part: Tensor) -> Tensor:
        """See `Collectives`."""
        return part

    def gather(self, part_RV: Tensor) -> Tensor:
        """See `Collectives`."""
        return part_RV

    def close(self) -> None:
        """See `Collectives`."""


ALONE = Alone()
