"""Turn the tensors that checkpoints hold into those that the decoder takes.

First the format of the checkpoint makes floats of what is stored, whatever the family; then the
family takes apart what it stores together. Each is a restorer, which passes on (name, tensor) one
at a time, so that no more than one is held besides the model. What it does not know it passes on
as it is.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Whoever only reads what a family or format is does without torch, which takes seconds.
    from torch import Tensor

Tensors = Iterator[tuple[str, "Tensor"]]


def take_experts_apart(tensors: Tensors) -> Tensors:
    """Stacked experts, [experts, outputs, inputs], become the matrices of each.

    Gate and up lie one behind the other; the names are those of experts that are stored each.
    """
    for name, tensor in tensors:
        bank, _, kind = name.rpartition(".")
        if bank.endswith(".experts") and kind == "down_proj":
            for expert, rows in enumerate(tensor):
                yield f"{bank}.{expert}.down_proj.weight", rows
        elif bank.endswith(".experts") and kind == "gate_up_proj":
            for expert, rows in enumerate(tensor):
                gate, up = rows.chunk(2)
                yield f"{bank}.{expert}.gate_proj.weight", gate
                yield f"{bank}.{expert}.up_proj.weight", up
        else:
            yield name, tensor
