"""Whole numbers of few bits in words, with scales and zero points for groups of inputs: AWQ, GPTQ.

Both hold their matrices [inputs, outputs], and say of zero points how far zero is from 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.kernels.int4.form import Int4Groups
from raydix.runtime.model.formats.layout import FLOAT_DTYPES, Part, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from raydix.runtime.model.formats.matrices import GroupedIntegers

_WORD_BITS = 32
_NUMBERS, _ZEROS, _SCALES, _GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"
_WORDS = Part(("I32",), num_dimensions=2)
_KEPT_BITS = 4
_AWQ_BITS = 4
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of its eight outputs."""


def _num_groups(inputs: int, group: int | None) -> int:
    return 1 if group is None else -(-inputs // group)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqLayout:
    """`.qweight` [words of inputs, outputs], and `.scales` and `.qzeros` of each group."""

    bits: int
    """A divisor of 32."""
    group: int | None
    """The inputs of a group; None: all."""
    is_symmetric: bool
    """Whether zero is in the middle of the range. Some files tell their version wrong."""
    is_less_one: bool
    """Whether zero points are stored less one, as the first version has them."""
    is_in_any_order: bool
    """Whether only `.g_idx` tells the group of an input."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Numbers, zero points and scales, and the group of each input."""
        return {
            _NUMBERS: _WORDS,
            _ZEROS: _WORDS,
            _SCALES: Part(FLOAT_DTYPES, num_dimensions=2),
            _GROUPS: Part(("I32", "I64"), is_optional=not self.is_in_any_order),
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """Scales and zero points for each group, the latter packed along the outputs."""
        num_words, outputs = stored[_NUMBERS]
        inputs = num_words * _WORD_BITS // self.bits
        num_groups = _num_groups(inputs, self.group)
        return {
            _SCALES: ((num_groups, outputs),),
            _ZEROS: ((num_groups, -(-outputs * self.bits // _WORD_BITS)),),
            _GROUPS: ((inputs,),),
        }

    @property
    def kept_form(self) -> Int4Groups | None:
        """The groups in which it may stay, if it has four bits and groups that are in order."""
        return None if self.bits != _KEPT_BITS or self.is_in_any_order else Int4Groups(self.group)

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix, [outputs, inputs]: (number - zero point) * scale."""
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

        words_NW, scales_GN = parts[_NUMBERS].T, parts[_SCALES]

        words = parts[_ZEROS]
        if self.is_less_one and not self.is_symmetric:
            # One for each number of a word at once, as it was taken off: 0 borrows from the next.
            words = words + sum(1 << place for place in range(0, _WORD_BITS, self.bits))
        zeros_GN = unpack_integers(words, self.bits)[:, : scales_GN.shape[1]]
        zero_points: Tensor | int = zeros_GN.T
        if self.is_symmetric:
            zero_points = 1 << (self.bits - 1)
            _require_middle(zeros_GN, zero_points)
        return GroupedIntegers(
            num_inputs=words_NW.shape[1] * _WORD_BITS // self.bits,
            numbers=lambda rows: unpack_integers(words_NW[rows], self.bits),
            zero_points_NG=zero_points,
            scales_NG=scales_GN.T,
            groups=parts.get(_GROUPS, self.group),
        )


def _require_middle(zeros_GN: "Tensor", middle: int) -> None:
    """Raise ValueError unless all are those of a symmetric matrix, of whichever version."""
    if zeros_GN.is_meta or not zeros_GN.numel():
        return
    lowest, highest = int(zeros_GN.min()), int(zeros_GN.max())
    if lowest != highest or highest not in (middle - 1, middle):
        raise ValueError(
            f"has zero points from {lowest} to {highest}; expected {middle - 1} or {middle} for "
            "all, as quantization_config.sym is true"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqLayout:
    """`.qweight` [inputs, words of eight outputs], which are not in turn; zero points likewise."""

    group: int | None
    """The inputs of a group; None: all."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Numbers, zero points and scales."""
        return {
            _NUMBERS: _WORDS,
            _ZEROS: _WORDS,
            _SCALES: Part(FLOAT_DTYPES, num_dimensions=2),
        }

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """Scales and zero points for each group."""
        inputs, num_words = stored[_NUMBERS]
        num_groups = _num_groups(inputs, self.group)
        return {
            _SCALES: ((num_groups, num_words * _WORD_BITS // _AWQ_BITS),),
            _ZEROS: ((num_groups, num_words),),
        }

    @property
    def kept_form(self) -> Int4Groups | None:
        """The groups in which it may stay."""
        return Int4Groups(self.group)

    def restore(self, parts: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor]]":
        """The matrix, [outputs, inputs]: (number - zero point) * scale."""
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

        def unpack(words_KW: "Tensor") -> "Tensor":
            by_word = unpack_integers(words_KW, _AWQ_BITS).unflatten(-1, (-1, len(_AWQ_NIBBLES)))
            return by_word[..., _AWQ_NIBBLES].flatten(-2).T

        def numbers(rows: slice) -> "Tensor":
            words = slice(rows.start // len(_AWQ_NIBBLES), rows.stop // len(_AWQ_NIBBLES))
            return unpack(parts[_NUMBERS][:, words])

        return GroupedIntegers(
            num_inputs=parts[_NUMBERS].shape[0],
            numbers=numbers,
            zero_points_NG=unpack(parts[_ZEROS]),
            scales_NG=parts[_SCALES].T,
            groups=self.group,
        )
