"""How weights of four bits lie in memory: what kernels, their twins and checkpoints agree on.

A number is 0 to 15, and stands for (number - zero point) * scale of its group of inputs. Each block
of 16 inputs is eight bytes: byte i has input i in its low half and input i + 8 in its high half.
"""

from dataclasses import dataclass

BLOCK = 16
"""The inputs whose numbers share eight bytes."""
HALF = BLOCK // 2
"""From the input in the low half of a byte to that in its high half."""
WORD = 8
"""The numbers of a word of 32 bits, as which kernels load them."""
MIDDLE = 8
"""The zero point of a symmetric matrix."""
KERNEL_GROUP = 32
"""The number of inputs of which kernels want groups to be multiples."""


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """A form in which a matrix may stay: four bits a number, in groups of inputs."""

    inputs: int | None
    """The inputs, one behind another, that share a scale and a zero point.

    None: all do, whatever part of them a rank has.
    """

    @property
    def has_kernel(self) -> bool:
        """Whether kernels know such groups: their twins know all."""
        return self.inputs is None or self.inputs % KERNEL_GROUP == 0
