"""MXFP4 as gpt-oss stores its experts: blocks of numbers in one tensor, their scales in another."""

from typing import TYPE_CHECKING

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.restoring import Tensors

if TYPE_CHECKING:
    from torch import Tensor

_BLOCKS, _SCALES = "_blocks", "_scales"


def restore_mxfp4(tensors: Tensors) -> Tensors:
    """Turn each pair `NAME_blocks` and `NAME_scales` into `NAME[0]`, `NAME[1]` ..., float32.

    One for each expert, [outputs, inputs]. Raises CheckpointError if a pair does not fit together,
    or a tensor's partner never comes.
    """
    # Imported here, as it takes torch, which whoever only reads what a format is does without.
    from raydix.runtime.model.formats.mxfp4_blocks import unpack_experts

    halves: dict[str, Tensor] = {}
    for name, tensor in tensors:
        base = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
        if base == name:
            yield name, tensor
            continue

        halves[name] = tensor
        if base + _BLOCKS in halves and base + _SCALES in halves:
            blocks, scales = halves.pop(base + _BLOCKS), halves.pop(base + _SCALES)
            for expert, restored in enumerate(unpack_experts(base, blocks, scales)):
                yield f"{base}[{expert}]", restored

    if halves:
        name = min(halves)
        base = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
        absent = base + (_SCALES if name.endswith(_BLOCKS) else _BLOCKS)
        raise CheckpointError(
            f"The checkpoint has {name} without {absent}; expected both. Fetch it again."
        )


MXFP4 = WeightFormat(quant_method="mxfp4", restore=restore_mxfp4, model_types=("gpt_oss",))
