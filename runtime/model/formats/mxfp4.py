"""MXFP4 as gpt-oss stores its experts: blocks of numbers in one tensor, their scales in another.

Blocks of 32 four-bit floats share a power of two (OCP Microscaling Formats 1.0).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.layout import Part, Shape

if TYPE_CHECKING:
    from torch import Tensor

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16


@dataclass(frozen=True, slots=True)
class StackedMxfp4:
    """The matrices of all experts: `_blocks` [experts, outputs, blocks, bytes] and `_scales`."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Both are bytes."""
        return {_BLOCKS: Part(("U8",), num_dimensions=4), _SCALES: Part(("U8",))}

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """A scale for each block."""
        *leading, _ = stored[_BLOCKS]
        return {_SCALES: ((*leading,),), _BLOCKS: ((*leading, _BLOCK_BYTES),)}

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """`[0]`, `[1]` ...: each expert's matrix, [outputs, inputs]."""
        for expert, blocks_ONB in enumerate(parts[_BLOCKS]):
            yield f"[{expert}]", _restore_expert(blocks_ONB, parts[_SCALES][expert])


def _restore_expert(blocks_ONB: "Tensor", scales_ON: "Tensor") -> "Tensor":
    """One expert's matrix. Legend: O outputs, N blocks of an output, B bytes of a block."""
    # Imported here, as it takes torch, which whoever only reads what a format is does without.
    from raydix.runtime.model.formats.matrices import powers_of_two, restore_four_bit_floats

    def scales(rows: slice) -> "Tensor":
        return powers_of_two(scales_ON[rows])

    return restore_four_bit_floats(blocks_ONB.flatten(1), scales, _BLOCK_BYTES * 2)


@dataclass(frozen=True, slots=True)
class _StackedExperts:
    """`ModuleLayouts`: what has blocks and scales is stacked experts."""

    description: str = "a scale per 32 numbers"
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = frozenset()

    def layout(self, module: str) -> StackedMxfp4:
        """The same for all."""
        return StackedMxfp4()


def _read(config: Mapping[str, Any]) -> _StackedExperts:
    return _StackedExperts()


MXFP4 = WeightFormat(
    quant_method="mxfp4",
    summary="stacked experts as four-bit floats with a power of two per 32",
    read=_read,
    model_types=("gpt_oss",),
)
