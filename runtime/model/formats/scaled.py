"""Matrices of 8 bits a number, float8 or int8, whose blocks are multiplied by a scale each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.kernels.fp8 import form
from raydix.runtime.model.formats.kept_names import KEPT_SCALE
from raydix.runtime.model.formats.layout import FLOAT_DTYPES, Part, Shape

if TYPE_CHECKING:
    from torch import Tensor

Block = tuple[int | None, int | None]
"""Outputs and inputs that share a scale; None: all of them. The last blocks may be short."""
PER_TENSOR: Block = (None, None)
PER_OUTPUT: Block = (1, None)
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLayout:
    """`.weight` [outputs, inputs] in its dtype, and a scale for each block, which multiplies it."""

    dtype: str
    """F8_E4M3 or I8."""
    block: Block
    scale: str = ".weight_scale"
    zero_point: str | None = None
    """The part with the int8 of each block that stands for zero, if there is one."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The matrix and its scales."""
        zero_points = {} if self.zero_point is None else {self.zero_point: Part(("I8",))}
        return {
            _WEIGHT: Part((self.dtype,), num_dimensions=2),
            self.scale: Part((*FLOAT_DTYPES, "F8_E8M0")),
            **zero_points,
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """A scale, and perhaps a zero point, for each block."""
        outputs, inputs = stored[_WEIGHT]
        rows, columns = self.block
        num_rows = 1 if rows is None else -(-outputs // rows)
        num_columns = 1 if columns is None else -(-inputs // columns)
        accepted: tuple[Shape, ...] = ((num_rows, num_columns),)
        if columns is None:
            accepted = (*accepted, (num_rows,))
        if self.block == PER_TENSOR:
            accepted = (*accepted, ())
        return {part: accepted for part in (self.scale, self.zero_point) if part is not None}

    @property
    def kept_form(self) -> form.Block | None:
        """The blocks in which it may stay: of float8 alone."""
        if self.dtype != "F8_E4M3" or self.zero_point is not None:
            return None
        rows, columns = self.block
        if self.block == PER_TENSOR:
            return form.PER_OUTPUT
        return None if rows is None else (rows, columns)

    def keep(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix as it is stored, and float32 scales of its blocks, [outputs, inputs].

        A scale of all is repeated for each output.
        """
        outputs, inputs = parts[_WEIGHT].shape
        rows, columns = (outputs, inputs) if self.block == PER_TENSOR else self.block
        num_rows = 1 if rows is None else -(-outputs // rows)
        num_columns = 1 if columns is None else -(-inputs // columns)
        scales = parts[self.scale].float().reshape(num_rows, num_columns)
        yield _WEIGHT, parts[_WEIGHT]
        yield KEPT_SCALE, scales.expand(outputs, 1) if self.block == PER_TENSOR else scales

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix: (number - zero point) * scale."""
        # Imported here, as it takes torch, which whoever only reads what a format is does without.
        from raydix.runtime.model.formats.matrices import made_by_rows, spread_blocks

        stored_NK = parts[_WEIGHT]

        def spread(part: str, rows: slice) -> "Tensor":
            return spread_blocks(parts[part], self.block, stored_NK.shape, rows)

        def make(rows: slice) -> "Tensor":
            numbers_NK = stored_NK[rows].float()
            if self.zero_point is not None:
                numbers_NK = numbers_NK - spread(self.zero_point, rows)
            return numbers_NK * spread(self.scale, rows)

        yield _WEIGHT, made_by_rows(stored_NK.shape, make, device=stored_NK.device)
