"""Matrices of four-bit floats, two in a byte, whose blocks of inputs share a scale."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.runtime.model.formats.layout import Part, Shape

if TYPE_CHECKING:
    from torch import Tensor

_SCALE = ".weight_scale"
NVFP4_BLOCK = 16
MXFP4_BLOCK = 32


def _shapes(
    numbers: str, block: int, stored: Mapping[str, Shape]
) -> Mapping[str, tuple[Shape, ...]]:
    """A scale for each block of a row, which has no part of a block."""
    outputs, num_bytes = stored[numbers]
    num_blocks = -(-num_bytes * 2 // block)
    return {
        numbers: ((outputs, num_blocks * block // 2),),
        _SCALE: ((outputs, num_blocks),),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4Layout:
    """Bytes [outputs, inputs / 2], a float8 scale for 16 inputs, and one for the whole matrix."""

    numbers: str
    """The part with the bytes."""
    whole_scale: str
    """The part with the scale of the whole matrix."""
    is_divisor: bool
    """Whether scales are divided by that of the matrix, and not multiplied."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Numbers, and both kinds of scales."""
        return {
            self.numbers: Part(("U8",), num_dimensions=2),
            _SCALE: Part(("F8_E4M3",)),
            self.whole_scale: Part(("F32",)),
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """A scale for each block, and one."""
        return {**_shapes(self.numbers, NVFP4_BLOCK, stored), self.whole_scale: ((), (1,))}

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix: number * (scale * scale of the matrix), or the one divided by the other."""
        # Imported here, as it takes torch, which whoever only reads what a format is does without.
        from raydix.runtime.model.formats.matrices import restore_four_bit_floats

        whole = parts[self.whole_scale].reshape(())

        def scales(rows: slice) -> "Tensor":
            own = parts[_SCALE][rows].float()
            return own / whole if self.is_divisor else own * whole

        yield ".weight", restore_four_bit_floats(parts[self.numbers], scales, NVFP4_BLOCK)


@dataclass(frozen=True, slots=True)
class Mxfp4Layout:
    """`.weight_packed` [outputs, inputs / 2], and a power of two for 32 inputs, as its exponent."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Numbers and exponents."""
        return {
            ".weight_packed": Part(("U8",), num_dimensions=2),
            _SCALE: Part(("U8", "F8_E8M0")),
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """A scale for each block."""
        return _shapes(".weight_packed", MXFP4_BLOCK, stored)

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix: number * 2 ** (exponent - 127)."""
        # Imported here, as it takes torch, which whoever only reads what a format is does without.
        from torch import uint8

        from raydix.runtime.model.formats.matrices import powers_of_two, restore_four_bit_floats

        exponents = parts[_SCALE].view(uint8)

        def scales(rows: slice) -> "Tensor":
            return powers_of_two(exponents[rows])

        yield ".weight", restore_four_bit_floats(parts[".weight_packed"], scales, MXFP4_BLOCK)
