"""Tensors in which a checkpoint stores the rows of several weights together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.restoring import Tensors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FusedRows:
    """Weights whose rows are stored in one tensor, by turns: some of the first, of the next, ..."""

    parts: tuple[str, ...]
    """What the family calls the weights."""
    num_turns: int = 1
    """Each turn has as many rows of a weight as any other."""


def with_scales(fused: Mapping[str, FusedRows]) -> Mapping[str, FusedRows]:
    """The same, and of weights whose rows are not by turns the rows of scales and zero points."""
    scales = {
        f"{name}{end}": FusedRows(tuple([f"{part}{end}" for part in rows.parts]))
        for name, rows in fused.items()
        if rows.num_turns == 1
        for end in ("_scale", "_zero_point")
    }
    return {**fused, **scales}


def take_apart(
    tensors: Tensors, fused: Mapping[str, FusedRows], num_rows: Mapping[str, int]
) -> Tensors:
    """Pass on each weight under its own name. `num_rows`: of each weight, by that name.

    A tensor none of whose parts the model has is passed on as it is. Raises CheckpointError if one
    has other rows than its parts together.
    """
    for name, tensor in tensors:
        if name in fused and not num_rows.keys().isdisjoint(fused[name].parts):
            yield from _parts(name, tensor, fused[name], num_rows)
        else:
            yield name, tensor


def _parts(name: str, tensor: "Tensor", fused: FusedRows, num_rows: Mapping[str, int]) -> Tensors:
    counts = [num_rows[part] for part in fused.parts]
    if tensor.shape[0] != sum(counts):
        raise CheckpointError(
            f"Tensor {name} has {tensor.shape[0]} rows; the config asks for {sum(counts)}, which "
            f"are those of {', '.join(fused.parts)}. Fetch the checkpoint and its config again."
        )
    turns = tensor.unflatten(0, (fused.num_turns, -1))
    pieces = turns.split([count // fused.num_turns for count in counts], dim=1)
    for part, piece in zip(fused.parts, pieces, strict=True):
        yield part, piece.flatten(0, 1)
