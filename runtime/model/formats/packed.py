"""Whole numbers of few bits, packed in words along the inputs, as by compressed-tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.kernels.int4.form import Int4Groups
from raydix.runtime.model.formats.layout import FLOAT_DTYPES, Part, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from raydix.runtime.model.formats.matrices import GroupedIntegers

_WORD_BITS = 32
_KEPT_BITS = 4
_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
_ZERO_POINT, _GROUPS = ".weight_zero_point", ".weight_g_idx"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """`.weight_packed` [outputs, words], and scales [outputs, groups of inputs].

    A number is stored more by half of the range: (number - zero point) * scale. Zero points are
    packed alike, but along the outputs.
    """

    bits: int
    """A divisor of 32."""
    group: int | None
    """The inputs that share a scale; None: all."""
    is_symmetric: bool
    """Whether zero is in the middle of the range, and no zero points are stored."""
    is_in_any_order: bool = False
    """Whether only `.weight_g_idx` tells the group of an input."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The words, scales and zero points, and old files' group of each input."""
        words = Part(("I32",), num_dimensions=2)
        return {
            _PACKED: words,
            _SCALE: Part(FLOAT_DTYPES, num_dimensions=2),
            _SHAPE: Part(("I64", "I32")),
            **({} if self.is_symmetric else {_ZERO_POINT: words}),
            _GROUPS: Part(("I32", "I64"), is_optional=True),
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """What follows from the shape of the words, which are full."""
        outputs, num_words = stored[_PACKED]
        inputs = num_words * _WORD_BITS // self.bits
        num_groups = 1 if self.group is None else -(-inputs // self.group)
        return {
            _SCALE: ((outputs, num_groups),),
            _SHAPE: ((2,),),
            _ZERO_POINT: ((-(-outputs * self.bits // _WORD_BITS), num_groups),),
            _GROUPS: ((inputs,),),
        }

    @property
    def kept_form(self) -> Int4Groups | None:
        """The groups in which it may stay, if it has four bits and groups that are in order."""
        return None if self.bits != _KEPT_BITS or self.is_in_any_order else Int4Groups(self.group)

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix, whose shape is stored, too."""
        # Imported here, as it takes torch, which whoever only reads what a format is does without.
        from raydix.runtime.model.formats.matrices import scale_groups

        yield ".weight", scale_groups(self._integers(parts))

    def keep(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix in four bits, its scales and its zero points."""
        from raydix.runtime.model.formats.matrices import keep_groups

        yield from keep_groups(self._integers(parts), self.group)

    def _integers(self, parts: "Mapping[str, Tensor]") -> "GroupedIntegers":
        """What `scale_groups` takes."""
        from raydix.runtime.model.formats.matrices import GroupedIntegers, unpack_integers

        words_NW = parts[_PACKED]
        outputs, inputs = words_NW.shape[0], words_NW.shape[1] * _WORD_BITS // self.bits
        shape = parts[_SHAPE]
        if not shape.is_meta and shape.tolist() != [outputs, inputs]:
            raise ValueError(
                f"has shape {shape.tolist()} by {_SHAPE[1:]}, and {[outputs, inputs]} as it is "
                "packed; expected full words of the same shape"
            )
        zero_points: Tensor | int = 1 << (self.bits - 1)
        if not self.is_symmetric:
            zero_points = unpack_integers(parts[_ZERO_POINT].T, self.bits)[:, :outputs].T
        return GroupedIntegers(
            num_inputs=inputs,
            numbers=lambda rows: unpack_integers(words_NW[rows], self.bits),
            zero_points_NG=zero_points,
            scales_NG=parts[_SCALE],
            groups=parts.get(_GROUPS, self.group),
        )
