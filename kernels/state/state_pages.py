"""Where the states of one layer lie."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatePages:
    """A layer's part of a pool of states, and the rows' tables of its pages.

    Legend: P pages, L layers of the KV group, H key heads, Z numbers of a head's state, R rows, N
    pages of a block table.
    """

    pool_PLHZ: Tensor
    """float32, contiguous; page 0 is padding."""
    layer: int
    block_tables_RN: Tensor
    """int32; 0 where a row keeps no state."""
    page_size: int
    """The tokens of a page."""

    @property
    def layer_offset(self) -> int:
        """The layer's first number in a page."""
        return self.layer * self.pool_PLHZ.stride(1)
